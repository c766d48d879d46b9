"""What one step line costs in Python, by framework.

python benchmarks/step_lines.py
"""

from __future__ import annotations

import time

from jobwatchdog.signals import steps

LINES = {
    "megatron": " iteration     1200/  500000 | consumed samples:       614400 | elapsed time per iteration (ms): 1843.2 | "
    "throughput per GPU (TFLOP/s/GPU): 412.7 | learning rate: 2.731000E-04 | global batch size:   512 | "
    "lm loss: 2.418733E+00 | loss scale: 1.0 | grad norm: 0.412 | num zeros: 0 | params norm: 812.334 | "
    "number of skipped iterations:   0 | number of nan iterations:   0 |",
    "nemo": "Training epoch 0, iteration 1199/4999 | lr: 0.0002731 | global_batch_size: 512 | global_step: 1199 | "
    "reduced_train_loss: 2.419 | train_step_timing in s: 1.843 | consumed_samples: 614400",
    "bar": "Epoch 0:  24%|##4       | 1200/5000 [36:51<1:56:42,  0.54it/s, v_num=7, train_loss=2.420]",
    "trainer-dict": "{'loss': 2.4187, 'grad_norm': 0.4121, 'learning_rate': 4.2e-05, 'epoch': 0.24}",
    "torchtitan": "[titan] 2026-11-30 12:00:01,123 - root - INFO - step: 1200  loss:  2.41873  grad_norm:  0.4121  "
    "memory: 61.22GiB(77.35%)  tps: 7,412  tflops: 381.44  mfu: 38.57%",
    "nanogpt": "iter 1200: loss 2.4187, time 1843.21ms, mfu 38.57%",
    "nanotron": "iteration: 1200 / 500000 | consumed_tokens: 2.52B | time_per_iteration_ms: 1.84K | tokens_per_sec: 1.14M "
    "| global_batch_size: 2.1M | grad_norm: 0.412 | lm_loss: 2.42 | lr: 0.000273 | eta: 10 days, 15:12:44",
    "mllog": ':::MLLOG {"namespace": "", "time_ms": 1728663749576, "event_type": "POINT_IN_TIME", "key": "train_loss", '
    '"value": 2.185, "metadata": {"file": "/workspace/cb.py", "lineno": 223, "samples_count": 80, "lr": 0.0003999}}',
    "generic-step": "[2026-11-30 12:00:01] step 1200 loss 2.4187 grad_norm 0.41 lr 0.0002",
    "phase": " saving checkpoint at iteration    1200 to /ckpt/run1 in torch_dist format",
}
ROUNDS = 5_000


def main() -> None:
    """Measure each line and print microseconds."""
    for parser, line in LINES.items():
        state = steps.new_state()
        parse = steps.PARSERS[parser].parse
        begun = time.perf_counter()
        for _ in range(ROUNDS):
            parse(line, state)
        print(f"{parser:14s} {(time.perf_counter() - begun) / ROUNDS * 1e6:6.1f} µs")


if __name__ == "__main__":
    main()
