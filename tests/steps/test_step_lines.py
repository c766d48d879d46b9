"""Each framework's line gives the step that its author meant."""

from __future__ import annotations

import math
import re

import pytest

from jobwatchdog.model import GpuSample, Phase, PhaseChanged, Signal, StepReport
from jobwatchdog.signals import steps
from jobwatchdog.signals.steps import StepState

TRIGGERS = [(parser, re.compile(pattern)) for parser, pattern in steps.STEP_TRIGGERS]

MEGATRON = (
    " [2026-11-30 12:00:01.123456] iteration     1200/  500000 | consumed samples:       614400 | elapsed time per "
    "iteration (ms): 1843.2 | learning rate: 2.731000E-04 | global batch size:   512 |{loss} loss scale: 1.0 | "
    "grad norm: {grad} | number of skipped iterations:   0 | number of nan iterations:   {nan} |"
)
BLOOM = (
    " iteration    31214/  115311 | consumed samples:     47768000 | consumed tokens:  97828000000 | elapsed time per "
    "iteration (s): 106.41 | learning rate: 5.279E-05 | global batch size:  2048 | lm loss: 2.201000E+00 | "
    "grad norm: 0.240 | num zeros: 0.0 | number of skipped iterations:   0 | number of nan iterations:   0 | "
    "samples per second: 19.240 | TFLOPs: 147.30 |"
)
NANOTRON = (
    "11/30 12:00:01 [INFO|DP=0|PP=0|TP=0|node-3]: iteration: 1200 / 500000 | consumed_tokens: 2.52B | "
    "time_per_iteration_ms: 1.84K | tokens_per_sec: 1.14M | global_batch_size: 2.1M | grad_norm: 0.412 | "
    "lm_loss: 2.42 | lr: 0.000273 | eta: 10 days, 15:12:44"
)
NEMO = (
    "Training epoch 0, iteration 1199/4999 | lr: 0.0002731 | global_batch_size: 512 | global_step: 1199 | "
    "reduced_train_loss: 2.419 | train_step_timing in s: 1.843 | consumed_samples: 614400"
)


def read(*lines: str, state: StepState | None = None) -> list[Signal]:
    """As the scanner does: each parser once a line."""
    state = state or steps.new_state()
    out: list[Signal] = []
    for line in lines:
        hit = dict.fromkeys(parser for parser, pattern in TRIGGERS if pattern.search(line))
        for parser in hit:
            out += steps.parse_trigger(parser, line, state)
    return out


def reports(*lines: str) -> list[StepReport]:
    return [signal for signal in read(*lines) if isinstance(signal, StepReport)]


def phases(*lines: str) -> list[tuple[Phase, bool]]:
    return [(signal.phase, signal.begin) for signal in read(*lines) if isinstance(signal, PhaseChanged)]


@pytest.mark.parametrize(
    ("line", "framework", "step", "loss", "grad_norm", "step_time_s"),
    [
        (
            MEGATRON.format(loss=" lm loss: 2.418733E+00 |", grad="0.412", nan=0),
            "megatron",
            1200,
            2.418733,
            0.412,
            1.8432,
        ),
        (BLOOM, "megatron", 31214, 2.201, 0.24, 106.41),
        (NEMO, "nemo", 1199, 2.419, None, 1.843),
        (
            "Epoch 0:  24%|##4       | 1200/5000 [36:51<1:56:42,  0.50it/s, v_num=7, train_loss=2.420]",
            "tqdm",
            1200,
            2.42,
            None,
            2.0,
        ),
        (
            (
                "Epoch 0:   6%|##     | 32040/500150 [6:28:43<94:39:17,  1.25it/s, loss=2.6, v_num=95nc, "
                "reduced_train_loss=2.590, global_step=3.2e+4, consumed_samples=2.56e+7]"
            ),
            "tqdm",
            32040,
            2.6,
            None,
            0.8,
        ),
        (
            "Epoch 2:  24%|##4       | 1200/5000 [36:51<1:56:42,  1.84s/it, Loss=2.4187]",
            "tqdm",
            11200,
            2.4187,
            None,
            1.84,
        ),
        (
            "{'loss': 2.4187, 'grad_norm': 0.4121, 'learning_rate': 4.2e-05, 'epoch': 0.24}",
            "huggingface",
            1,
            2.4187,
            0.4121,
            None,
        ),
        ("{'loss': '2.419', 'grad_norm': '0.4121', 'learning_rate': '4.2e-05'}", "huggingface", 1, 2.419, 0.4121, None),
        (
            (
                "[2026-11-30 12:00:01,123] [INFO] [logging.py:131:log_dist] [Rank 0] "
                "step=1200, skipped=3, lr=[0.0002731], "
                "mom=[(0.9, 0.95)]"
            ),
            "deepspeed",
            1200,
            None,
            None,
            None,
        ),
        (
            (
                "[2026-11-30 12:00:01,124] [INFO] [timer.py:264:stop] epoch=0/micro_step=4800/global_step=1200, "
                "RunningAvgSamplesPerSec=277.91"
            ),
            "deepspeed",
            1200,
            None,
            None,
            None,
        ),
        (
            "steps: 1200 loss: 2.4187 iter time (s): 1.843 samples/sec: 277.808",
            "deepspeed-pipe",
            1200,
            2.4187,
            None,
            1.843,
        ),
        (
            (
                "[titan] 2026-11-30 12:00:01,123 - root - INFO - step: 1200  loss:  2.41873  grad_norm:  0.4121  "
                "memory: 61.22GiB(77.35%)  tps: 7,412"
            ),
            "torchtitan",
            1200,
            2.41873,
            0.4121,
            None,
        ),
        ("iter 1200: loss 2.4187, time 1843.21ms, mfu 38.57%", "nanogpt", 1200, 2.4187, None, 1.84321),
        ("step:12/1750 train_time:482ms step_avg:40.17ms", "modded-nanogpt", 12, None, None, 0.04017),
        (
            "step:125/1750 val_loss:4.1234 train_time:4820ms step_avg:40.17ms",
            "modded-nanogpt",
            125,
            None,
            None,
            0.04017,
        ),
        (
            (
                "Epoch 1 | iter 4800 step 1200 | loss train: 2.419, val: n/a | iter "
                "time: 460.80 ms (step) remaining time: 1:56"
            ),
            "litgpt",
            1200,
            2.419,
            None,
            0.4608,
        ),
        ("iter 3704 step 463: loss 4.7002, iter time: 897.30ms", "litgpt", 463, 4.7002, None, 0.8973),
        (NANOTRON, "nanotron", 1200, 2.42, 0.412, 1.84),
        (
            "step:1200 - actor/pg_loss:0.0123 - actor/grad_norm:0.41 - perf/throughput:1834.2",
            "verl",
            1200,
            0.0123,
            0.41,
            None,
        ),
        (
            (
                ':::MLLOG {"namespace": "", "time_ms": 1728663749576, '
                '"event_type": "POINT_IN_TIME", "key": "train_loss", '
                '"value": 2.185, "metadata": {"lineno": 223, "samples_count": 80}}'
            ),
            "mllog",
            80,
            2.185,
            None,
            None,
        ),
        ("[12:00:01] step 1200/5000 loss 2.4187 grad_norm 0.41", "generic", 1200, 2.4187, 0.41, None),
        ("Step: 1200, Loss: 2.4187", "generic", 1200, 2.4187, None, None),
        ("step 1200 | 1834 tok/s, loss 2.4187", "generic", 1200, 2.4187, None, None),
        ('{"step": 1200, "loss": 2.4187, "lr": 0.001}', "generic", 1200, 2.4187, None, None),
        ('{"loss": 2.4187, "global_step": 1200}', "generic", 1200, 2.4187, None, None),
        (
            "Epoch: [2/520] Iter:[30/247], Time: 0.41, lr: [0.01], Loss: 1.310830, Acc:0.9",
            "generic-epoch",
            524,
            1.31083,
            None,
            None,
        ),
    ],
)
def test_one_line_one_step(
    line: str, framework: str, step: int, loss: float | None, grad_norm: float | None, step_time_s: float | None
) -> None:
    """No line is read by two parsers, none is missed."""
    (report,) = reports(line)
    assert (report.framework, report.step) == (framework, step)
    assert report.loss == (None if loss is None else pytest.approx(loss))
    assert report.grad_norm == (None if grad_norm is None else pytest.approx(grad_norm))
    assert report.step_time_s == (None if step_time_s is None else pytest.approx(step_time_s))
    assert not report.loss_missing


def test_megatron_without_the_loss_it_had_is_marked() -> None:
    """The field vanishes when it is NaN; at the start, before any loss, its absence says nothing."""
    with_loss = MEGATRON.format(loss=" lm loss: 2.418733E+00 |", grad="0.412", nan=0)
    without = MEGATRON.format(loss="", grad="nan", nan=1)
    assert [r.loss_missing for r in reports(without, with_loss, without)] == [False, False, True]
    assert reports(without)[0].nan_count == 1
    assert math.isnan(reports(without)[0].grad_norm or 0.0)


def test_a_wrapped_megatron_record_lost_nothing() -> None:
    """A terminal cut the record in two: the loss stands in the next line."""
    cut = MEGATRON[: MEGATRON.index(" global batch")]
    assert not any(r.loss_missing for r in reports(MEGATRON.format(loss=" lm loss: 2.4 |", grad="1", nan=0), cut))


@pytest.mark.parametrize("word", ["nan", "NaN", "inf"])
def test_numbers_that_are_none_stay_floats(word: str) -> None:
    """`nan` and `inf` are values here, not parse errors."""
    (report,) = reports(f"iter 1200: loss {word}, time 1843.21ms, mfu 38.57%")
    assert report.loss is not None
    assert not math.isfinite(report.loss)


def test_a_nan_in_a_progress_bar_counts_even_with_lines_glued_to_it() -> None:
    """Progress bars end without a newline; what follows sticks to them."""
    (report,) = reports(
        "Steps:   0%|▏       | 16/6000 [00:55<4:54:46,  2.96s/it, lr=0, noise_step_loss=nan][rank0]: Traceback"
    )
    assert report.step == 16
    assert math.isnan(report.loss or 0.0)


def test_the_trainers_dict_takes_its_step_from_the_bar() -> None:
    """Dict lines carry no step; the bar's updates count as steps once it is known to be the Trainer's."""
    found = reports(
        " 24%|##4       | 1200/5000 [36:51<1:56:42,  1.84s/it]",
        "{'loss': 2.4187, 'grad_norm': 0.4121, 'learning_rate': 4.2e-05, 'epoch': 0.24}",
        " 24%|##4       | 1201/5000 [36:53<1:56:42,  1.84s/it]",
        " 24%|##4       | 1201/5000 [36:53<1:56:42,  1.84s/it]",
    )
    assert [(r.framework, r.step) for r in found] == [("huggingface", 1200), ("bar", 1201)]


@pytest.mark.parametrize(
    "line",
    [
        "Downloading shards: 100%|##########| 2/2 [00:01<00:00,  1.84it/s]",
        "Map: 24%|##4       | 1200/5000 [36:51<1:56:42,  184.1 examples/s]",
        "Validation DataLoader 0:  24%|##4  | 12/50 [00:51<01:42,  0.50it/s, val_loss=2.1]",
        "Loading checkpoint shards:  50%|#####     | 1/2 [00:10<00:10, 10.01s/it]",
        "[titan] INFO - validate step: 1200  loss:  2.5011  memory: 61.22GiB(77.35%)",
        "step 1000: train loss 2.4300, val loss 2.5011",
        "valid loss at iteration 45000 | lm loss value: 2.330000E+00 | lm loss PPL: 1.028000E+01 |",
        "{'eval_loss': 2.51, 'eval_runtime': 12.1, 'epoch': 0.24}",
        "the loss rises after step 3 of the tutorial",
        "step 3: compute the loss on 8 GPUs",
        "max_steps: 800, loss_scale: 1.0",
        ':::MLLOG {"key": "eval_start", "value": null, "metadata": {"step": 80}}',
    ],
)
def test_no_step_where_there_is_none(line: str) -> None:
    """Other bars, validation, prose and settings."""
    assert reports(line) == []


def test_composer_tells_a_step_once_over_its_lines() -> None:
    """Head, then values; the record without a loss comes when the next head does."""
    found = reports(
        "[batch=1200/500000]:", "\t Train time/batch: 1199", "\t Train l2_norm/grad/global: 0.41",
        "\t Train loss/train/total: 2.4187", "\t Train throughput/batches_per_sec: 0.5425",
        "[batch=1201/500000]:", "[batch=1202/500000]:", "\t Train loss/train/total: 2.4000",
    )  # fmt: skip
    told = [(r.step, r.loss, r.loss_missing) for r in found]
    assert told == [
        (1200, 2.4187, False),
        (1201, None, True),
        (1202, 2.4, False),
    ]
    assert found[0].grad_norm == pytest.approx(0.41)


def test_olmo_core_tells_a_step_once_over_its_lines() -> None:
    """The gradient norm follows the loss and is a report of its own for the same step."""
    found = reports(
        "[step=1200/500000,epoch=1,eta=10d 15h]", "    train/CE loss=2.419", "    optim/total grad norm=0.4121"
    )
    assert [(r.step, r.loss, r.grad_norm) for r in found] == [(1200, 2.419, None), (1200, None, 0.4121)]


def test_deepspeeds_skipped_is_a_difference() -> None:
    """`skipped=` counts from the start of the run."""
    line = "[INFO] [logging.py:131:log_dist] [Rank 0] step={}, skipped={}, lr=[0.0002731], mom=[(0.9, 0.95)]"
    assert [r.skipped for r in reports(line.format(10, 3), line.format(20, 5), line.format(30, 5))] == [0, 2, 0]


@pytest.mark.parametrize(
    ("line", "scale"),
    [
        ("[deepspeed] OVERFLOW! Rank 3 Skipping step. Attempted loss scale: 65536, reducing to 32768", 32768.0),
        (
            "[deepscale] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 16777216.0, reducing to 8388608.0",
            8388608.0,
        ),
        (
            (
                "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, but hysteresis is 2. "
                "Reducing hysteresis to 1"
            ),
            65536.0,
        ),
        ("Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0", 32768.0),
    ],
)
def test_an_overflow_is_a_skipped_step_with_its_scale(line: str, scale: float) -> None:
    """The line names no step; the bar's or the last one stands in."""
    found = [s for s in read(" 14%|#4   | 378/2724 [13:58:09<86:18:35, 132.44s/it]", line) if isinstance(s, StepReport)]
    assert [(r.step, r.skipped, r.loss_scale) for r in found] == [(378, 1, scale)]


CHECKPOINT, EVAL, SHUTDOWN, TRAIN = Phase.CHECKPOINT, Phase.EVAL, Phase.SHUTDOWN, Phase.TRAIN


@pytest.mark.parametrize(
    ("line", "phase", "begin"),
    [
        ("saving checkpoint at iteration    1200 to /ckpt/run in torch_dist format", CHECKPOINT, True),
        ("  successfully saved checkpoint from iteration    1200 to /ckpt/run [ t 1/8, p 1/4 ]", CHECKPOINT, False),
        ("  successfully saved checkpoint at iteration    1200 to /ckpt/run", CHECKPOINT, False),
        ("Saving model checkpoint to ./out/checkpoint-500", CHECKPOINT, True),
        ("[Torch] Saving /ckpt/global_step100/mp_rank_00_model_states.pt...", CHECKPOINT, True),
        ("[Torch] Checkpoint global_step100 is ready now!", CHECKPOINT, False),
        ("[titan] INFO - Saving the checkpoint (or staging if async is enabled).", CHECKPOINT, True),
        (
            "[titan] INFO - Finished saving the checkpoint (or staging if async is enabled) in 3.20 seconds.",
            CHECKPOINT,
            False,
        ),
        ("saving checkpoint to out", CHECKPOINT, True),
        ("=> saving checkpoint to output/train/checkpoint.pth.tar", CHECKPOINT, True),
        ("***** Running Evaluation *****", EVAL, True),
        ("Evaluating on validation set at iteration 25", EVAL, True),
        ("step 1000: train loss 2.4300, val loss 2.5011", EVAL, False),
        ("{'eval_loss': 2.51, 'eval_runtime': 12.1, 'epoch': 0.24}", EVAL, False),
        ("{'train_runtime': '9215', 'train_samples_per_second': '277.8', 'train_loss': '2.61'}", SHUTDOWN, True),
        ("`Trainer.fit` stopped: `max_steps=5000` reached.", SHUTDOWN, True),
        ("Training completed. Do not forget to share your model on huggingface.co/models =)", SHUTDOWN, True),
        ("[titan] INFO - Training completed", SHUTDOWN, True),
        ("training finished after step 60", SHUTDOWN, True),
        (':::MLLOG {"key": "run_stop", "value": null, "metadata": {"status": "success"}}', SHUTDOWN, True),
        (':::MLLOG {"key": "eval_start", "value": null, "metadata": {"step": 80}}', EVAL, True),
        ("[titan] INFO - Training starts at step 1201", TRAIN, True),
    ],
)
def test_phases_are_heard(line: str, phase: Phase, begin: bool) -> None:
    """Checkpoints, evaluation and the end, in the words of each framework."""
    assert phases(line) == [(phase, begin)]


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: error saving checkpoint to /ckpt: No space left on device",
        "WARNING: not saving checkpoint to /ckpt, disabled by option",
        "0: CUDA graph capture for training complete",
        "Finished training step 12 of epoch 3",
        "Saving model checkpoint to /x failed",
    ],
)
def test_talk_about_phases_is_none(line: str) -> None:
    """A complaint about saving is not a saving."""
    assert phases(line) == []


def test_a_checkpoints_path_and_step_are_kept() -> None:
    """They say later which checkpoint was begun but never finished."""
    (signal,) = read("saving checkpoint at iteration    1200 to /ckpt/run in torch_dist format")
    assert isinstance(signal, PhaseChanged)
    assert (signal.step, signal.path) == (1200, "/ckpt/run")


# ---- GPUs -------------------------------------------------------------------------------------------

REPORT = """\
GPU 00000000:C5:00.0
    GPU Current Temp                  : 88 C
    GPU T.Limit Temp                  : -1 C
    Power Draw                        : 312.40 W
    Clocks {era} Reasons
        Idle                          : Not Active
        SW Power Cap                  : Not Active
        HW Slowdown                   : {hw}
            HW Thermal Slowdown       : {hw}
            HW Power Brake Slowdown   : Not Active
        Sync Boost                    : Not Active
        SW Thermal Slowdown           : Not Active
    Clocks
        Graphics                      : 990 MHz
        SM                            : 990 MHz
    Max Clocks
        SM                            : 1980 MHz
"""


@pytest.mark.parametrize("era", ["Throttle", "Event"])
@pytest.mark.parametrize(("hw", "reasons"), [("Active", 0x48), ("Not Active", 0)])
def test_a_gpu_report_of_either_era_is_one_sample_in_the_end(era: str, hw: str, reasons: int) -> None:
    """The last sample has all that the report said."""
    samples = [s for s in read(*REPORT.format(era=era, hw=hw).splitlines()) if isinstance(s, GpuSample)]
    last = samples[-1]
    assert (last.gpu, last.reasons, last.sm_clock_mhz, last.sm_clock_max_mhz) == (
        "0000:c5:00.0",
        reasons,
        990.0,
        1980.0,
    )
    assert (last.temp_c, last.temp_margin_c, last.power_w) == (88.0, -1.0, 312.4)
    assert all(s.reasons != 0x8 for s in samples), "a slowdown is told with its cause"


def test_csv_rows_follow_their_header() -> None:
    """Without a header nothing is guessed."""
    row = "0, 00000000:C5:00.0, 990 MHz, 1980 MHz, 88, 0x0000000000000048"
    header = (
        "index, pci.bus_id, clocks.current.sm [MHz], clocks.max.sm [MHz], temperature.gpu, clocks_event_reasons.active"
    )
    assert read(row) == []
    (sample,) = read(header, row)
    assert isinstance(sample, GpuSample)
    assert (sample.gpu, sample.reasons, sample.sm_clock_mhz, sample.temp_c) == ("0000:c5:00.0", 0x48, 990.0, 88.0)


def test_megatrons_straggler_report_names_the_slow_and_the_fast() -> None:
    """Two samples, one a rank."""
    slow, fast = read(
        "INFO:megatron.core.utils:[2026-11-30 12:00:01] | MnTmp/Rnk: 51C/0 | MxTmp/Rnk: 84C/3 | "
        "MnClk/Rnk: 1410MHz/3 | MxClk/Rnk: 1980MHz/0 | MnEtpt/Rnk: 271.40TF/3"
    )
    assert isinstance(slow, GpuSample)
    assert isinstance(fast, GpuSample)
    assert (slow.gpu, slow.sm_clock_mhz, slow.temp_c, fast.gpu) == ("rank 3", 1410.0, 84.0, "rank 0")
