from __future__ import annotations

import json
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvpressure.commandline.options import human, share, whole
from kvpressure.commandline.words import MAX_ENTRIES, WORK, Budget
from kvpressure.launch import Reading, read_start, runtime_of, serving_port
from kvpressure.launch import read_limits as read_limits_of
from kvpressure.model.environment import LIMIT_NAMES
from kvpressure.runtimes.vllm.launch import FLAGS
from tests.support.starts import declared_limits, read_limits


def limits(*args: str, env: dict[str, str] | None = None, files: dict[str, str] | None = None) -> dict[str, float]:
    return {one.name: one.value for one in declared_limits(["vllm", "serve", "m"], args, env or {}, {}, files)}


def in_shell(script: str, **env: str) -> dict[str, float]:
    return {one.name: one.value for one in declared_limits(["/bin/sh", "-c"], [script], env, {})}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("1", 1), ("32k", 32_000), ("32K", 32_768), ("1.5k", 1500), ("25.6k", 25_600), ("1M", 2**20), ("2g", 2e9)),
        *((" 8192 ", 8192), ("1_000", 1000), ("+5", 5), ("1T", 2**40)),
    ],
)
def test_numbers_are_read_as_vllm_reads_them(text: str, value: float) -> None:
    assert human(text) == value


@pytest.mark.parametrize("text", ["", "1.5K", "auto", "-1", "0", "1kk", "0x10", "1e3", "nan", "٣", "1" * 5000, "k"])
def test_what_vllm_would_refuse_or_choose_itself_is_no_number(text: str) -> None:
    assert human(text) is None
    assert whole("1k") is None


@pytest.mark.parametrize(("text", "value"), [("0.9", 0.9), (".9", 0.9), ("1", 1.0), ("9e-1", 0.9)])
def test_shares_lie_above_nought_and_up_to_one(text: str, value: float) -> None:
    assert share(text) == value
    assert [share(wrong) for wrong in ("0", "1.1", "nan", "inf", "", "90%", "1e-999")] == [None] * 7


@pytest.mark.parametrize(
    "args",
    [
        ["--max-num-seqs", "256"],
        ["--max-num-seqs=256"],
        ["--max_num_seqs", "256"],
        ["--max_num_seqs=256"],
        ["--max-num_seqs=256"],
        ["--max-num-se=256"],
        ["--max-num-seqs=1", "--max-num-seqs", "256"],
        ["--max-num-seqs", "$(SEQS)"],
    ],
)
def test_every_spelling_of_a_flag_counts(args: list[str]) -> None:
    assert limits(*args, env={"SEQS": "256"}) == {"max_num_seqs": 256}


def test_a_beginning_that_may_mean_several_flags_means_none() -> None:
    assert limits("--max-num=256", "--max=8192", "--gpu=0.5") == {}


def test_short_numbers_are_taken_where_vllm_takes_them() -> None:
    given_limits = limits("--max-model-len=32k", "--max-num-batched-tokens", "8K", "--max-num-seqs=1k")
    assert given_limits == {"max_model_len": 32_000, "max_num_batched_tokens": 8192}


def test_a_length_that_vllm_chooses_is_not_declared_and_says_so() -> None:
    reading = read_limits(["vllm", "serve", "m"], ["--max-model-len", "-1"], {}, {})
    assert reading.limits == {}
    assert reading.unclear == {"max_model_len": "--max-model-len -1: vLLM chooses the value"}
    assert "vLLM chooses" in read_limits([], ["--max-model-len=auto"], {}, {}).unclear["max_model_len"]


@pytest.mark.parametrize(
    "script",
    [
        "vllm serve m --max-num-seqs 7",
        "exec vllm serve m --max-num-seqs=7",
        "cd /x && \\\n vllm serve m \\\n --max-num-seqs \\\n 7",
        "SEQS=7\nvllm serve m --max-num-seqs $SEQS",
        'export SEQS="7"; vllm serve m --max-num-seqs "${SEQS}"',
        "vllm serve m --max-num-seqs ${SEQS:-7}",
        'eval "vllm serve m --max-num-seqs 7"',
        "vllm serve m --max-num-seqs 8 --max-num-seqs $FROM_ENV",
        "echo vllm serve --max-num-seqs 9; python3 -m vllm.entrypoints.openai.api_server --model m --max-num-seqs=7",
        "vllm serve m $ARGS",
    ],
)
def test_flags_in_scripts_are_found(script: str) -> None:
    assert in_shell(script, FROM_ENV="7", ARGS="--max-num-seqs 7") == {"max_num_seqs": 7}


def test_a_variable_that_is_not_set_makes_its_limit_unclear_and_others_possible() -> None:
    script = "vllm serve m --max-num-seqs ${SEQS} ${MORE}"
    reading = read_limits(["sh", "-c", script], [], {}, {})
    assert reading.limits == {}
    assert reading.unclear == {"max_num_seqs": "--max-num-seqs ${SEQS}: not known: $SEQS"}
    assert reading.hidden == ("not known: ${MORE}",)


@pytest.mark.parametrize(
    "script", ["vllm serve $M --x 1", "vllm serve m --served-model-name $N", "vllm serve m -tp=$T"]
)
def test_a_variable_where_a_value_stands_hides_no_limits(script: str) -> None:
    assert read_limits(["sh", "-c", script], [], {}, {}).hidden == ()


@pytest.mark.parametrize(
    "script", ["vllm serve $ARGS", "vllm serve m --enforce-eager $MORE", "vllm serve m $(cat args)"]
)
def test_a_variable_where_a_flag_may_stand_may_hide_any_limit(script: str) -> None:
    assert len(read_limits(["sh", "-c", script], [], {}, {}).hidden) == 1


def test_two_servers_in_one_script_declare_what_both_say() -> None:
    script = "vllm serve a --max-num-seqs 8 --max-model-len 1K & vllm serve b --max-num-seqs 8 --max-model-len 2K"
    reading = read_limits(["sh", "-c", script], [], {}, {})
    assert {name: one.value for name, one in reading.limits.items()} == {"max_num_seqs": 8}
    assert reading.unclear == {"max_model_len": "the command starts several servers that differ in it"}


def test_two_servers_have_no_options_and_no_model_in_which_they_differ() -> None:
    script = "[ $X ] && vllm serve a -tp 2 --dtype half || vllm serve b --dtype half"
    reading = read_limits(["sh", "-c", script], [], {}, {})
    assert (reading.model, list(reading.options)) == ("", ["dtype"])
    assert list(reading.unclear) == ["tensor-parallel-size"]


@pytest.mark.parametrize("condition", ["x && {}", "x || {}", "cd /x && x && {}"])
def test_what_is_set_under_a_condition_declares_nothing(condition: str) -> None:
    setting = condition.format('SEQS=64 MORE="--max-model-len 4K"')
    reading = read_limits(
        ["sh", "-c", f"SEQS=8\nMORE=\n{setting}\nvllm serve m --max-num-seqs $SEQS $MORE"], [], {}, {}
    )
    assert reading.limits == {}
    assert list(reading.unclear) == ["max-model-len", "max_model_len", "max_num_seqs"]
    assert reading.hidden == ()


@pytest.mark.parametrize(
    ("script", "limits", "unclear"),
    [
        ("A=(-tp 2)\nif x; then A+=(--max-num-seqs 8); fi\nvllm serve m ${A[@]}", {}, ["max-num-seqs"]),
        ("A=()\nif x; then A=(--max-num-seqs 8); fi\nvllm serve m ${A[@]} --max-num-seqs 4", {"max_num_seqs": 4}, []),
        ("A=\nif x; then A='--enforce-eager'; fi\nif y; then A=\"$A --dtype half\"; fi\nvllm serve m $A",
         {}, ["dtype"]),
        ("A=--max-num-seqs=8\nif x; then A=\"$A --max-num-seqs=8\"; fi\nvllm serve m $A", {"max_num_seqs": 8}, []),
        ("A=\nif x; then A='--override-generation-config {\"max_new_tokens\":8}'; fi\nvllm serve m $A",
         {}, ["max_output_tokens", "override-generation-config"]),
        ("A=--max-num-seqs=8\n[ $X ] && A=$(cat args)\nvllm serve m $A", {}, []),
        ("if x; then A=--max-num-seqs=8; fi\nvllm serve m $A", {}, []),
    ],
)  # fmt: skip
def test_options_under_a_condition_leave_open_what_they_are_of_and_nothing_else(
    script: str, limits: dict[str, float], unclear: list[str]
) -> None:
    reading = read_limits(["sh", "-c", script], [], {}, {})
    assert {name: limit.value for name, limit in reading.limits.items()} == limits
    assert sorted(name for name in reading.unclear if "_" not in name or name == "max_output_tokens") == sorted(unclear)
    assert bool(reading.hidden) == ("$(cat" in script or script.startswith("if"))


AROUND = [
    ("if x; then {}; fi", "only if the condition in line 1 of its script says so"),
    ("if [ $ROLE = a ]; then\n  N=2\nfi\n{}", "only if the condition in line 1 of its script ($ROLE) says so: $N"),
    ("while x; do A=1; done; {}", "only if a loop says so: $A"),
    ("for p in 1 2; do {} --port $p & done", "not known: $p"),
    ("case $R in a) {};; esac", "only if the condition in line 1 of its script ($R) says so"),
    ("start() {{ {}; }}; start", ""),
    ("log() {{ echo; }}\nexec {}", ""),
    ("({})", ""),
    ("{{ {}; }}", ""),
    ("! x; {}", ""),
    ('A=(--dtype half); {} "${{A[@]}}"', ""),
    ("((N=2)); {}", ""),
    ("cat > /c.yaml <<END\nx: 1\nEND\n{} --config /c.yaml", ""),
    ("{} & while x; do A=1; done; echo", ""),
    ("if x; then bash -c '{}'; fi", "only if the condition in line 1 of its script says so"),
    ("eval 'if x; then {}; fi'", "only if the condition in line 1 of its script says so"),
    ("ssh gpu-1 '{}'", ""),
    ("ssh gpu-1 <<END\n{}\nEND", ""),
    ("sudo -u llm nohup {} &", ""),
    ('[ -n "$X" ] && exec {}', "only if the test before it says so"),
]


@pytest.mark.parametrize(("script", "note"), AROUND)
@pytest.mark.parametrize("server", ["vllm serve m", "python -m sglang.launch_server --model-path m"])
def test_flags_as_written_are_known_whatever_is_around_them_and_that_is_a_note(
    script: str, note: str, server: str
) -> None:
    flag = "--context-length" if "sglang" in server else "--max-model-len"
    start = read_start(["bash", "-c", script.format(f"{server} {flag} 4096")], [], {}, Budget())
    assert runtime_of("own", start) is not None
    reading = read_limits_of(start)
    assert {name: limit.value for name, limit in reading.limits.items()} == {"max_model_len": 4096}
    assert reading.notes == ((note,) if note else ())
    assert reading.runtime is runtime_of("own", start)


@pytest.mark.parametrize(
    ("script", "value", "note"),
    [
        ("N=8; vllm serve m --max-num-seqs $N", 8, ""),
        ("N=${N:-8}; vllm serve m --max-num-seqs $N", 8, "as stated here, unless set elsewhere: $N"),
        ("vllm serve m --max-num-seqs ${N:-8}", 8, "as stated here, unless set elsewhere: $N"),
        ("vllm serve m --max-num-seqs ${1:-8}", 8, "as stated here, unless set elsewhere: $1"),
        ("N=8; N=8; vllm serve m --max-num-seqs $N", 8, ""),
        ("A=(--max-num-seqs 8); A+=(--dtype half); vllm serve m ${A[@]}", 8, ""),
        ("A='--max-num-seqs 8'; A+=' --dtype half'; vllm serve m $A", 8, ""),
        ('A=(--max-num-seqs 8); vllm serve m "${A[@]}"', 8, ""),
        ('set -- --max-num-seqs 8; vllm serve m "$@"', 8, ""),
        ('N=8; bash -c "vllm serve m --max-num-seqs $N"', 8, ""),
        ("N=8; N=9; vllm serve m --max-num-seqs $N", None, "not known: $N"),
        ("if x; then N=8; fi; vllm serve m --max-num-seqs $N", None, "not known: $N"),
        ("x || N=8; vllm serve m --max-num-seqs $N", None, "not known: $N"),
        ("read N; vllm serve m --max-num-seqs $N", None, "not known: $N"),
        ("N=$(nproc); vllm serve m --max-num-seqs $N", None, "not known: $N"),
        ("vllm serve m --max-num-seqs $((4*2))", None, "not known: $(...)"),
        ("vllm serve m --max-num-seqs ${N%%x}", None, "not known: $N"),
    ],
)
def test_a_variable_is_known_where_the_script_states_it_once(script: str, value: float | None, note: str) -> None:
    reading = read_limits(["bash", "-c", script], [], {}, {})
    limit = reading.limits.get("max_num_seqs")
    assert (None if limit is None else limit.value) == value
    assert not note or note in reading.notes


def test_values_of_variables_are_not_told_unless_they_are_a_limit() -> None:
    env = {"SECRET": "hunter2", "SEQS": "8"}
    script = "vllm serve m --max-num-seqs $SECRET --api-key $SECRET --max-model-len ${SEQS}"
    reading = read_limits(["sh", "-c", script], [], env, {})
    assert "hunter2" not in str((reading.limits, reading.unclear, reading.hidden, reading.notes))
    assert reading.limits["max_model_len"].value == 8
    assert reading.limits["max_model_len"].where == "--max-model-len ${SEQS}"


def test_a_loop_that_only_waits_before_the_start_says_nothing_of_it() -> None:
    script = "N=8\nuntil ray status; do echo waiting; sleep 2; done &&\nvllm serve m --max-num-seqs $N"
    assert in_shell(script) == {"max_num_seqs": 8}


def test_control_flow_behind_the_start_says_nothing_of_it() -> None:
    script = "vllm serve m --max-num-seqs 8 &\nwhile ! curl -s localhost; do sleep 1; done\nwait"
    assert in_shell(script) == {"max_num_seqs": 8}


def test_a_role_that_control_flow_decides_makes_no_worker_of_an_engine() -> None:
    decides = "if x; then ROLE=--headless; fi; vllm serve m $ROLE"
    start = read_start(["bash", "-c", decides], [], {}, Budget())
    assert runtime_of("own", start) is not None
    always = read_start(["bash", "-c", "if x; then vllm serve m --headless; fi"], [], {}, Budget())
    assert runtime_of("own", always) is None


def test_the_command_line_wins_over_the_configuration_file() -> None:
    text = "max-num-seqs: 512\nmax_num_batched_tokens: 16K\ngpu-memory-utilization: 0.60\nmodel: m\n"
    found = declared_limits([], ["--max-num-seqs=8", "--config", "/etc/v.yaml"], {}, {}, {"/etc/v.yaml": text})
    assert [(one.name, one.value) for one in found] == [
        ("max_num_seqs", 8),
        ("max_num_batched_tokens", 16_384),
        ("gpu_memory_utilization", 0.6),
    ]
    assert found[1].where == "max_num_batched_tokens: 16K in /etc/v.yaml"


def test_a_configuration_file_that_is_not_there_or_no_mapping_may_hold_anything() -> None:
    words = ["--config", "/c.yaml"]
    assert read_limits([], words, {}, {}).hidden == ("the file of --config, /c.yaml, is not among the manifests",)
    assert read_limits([], words, {}, {}, {"/c.yaml": "- a"}).hidden == (
        "the file of --config, /c.yaml, is not a YAML mapping",
    )
    assert read_limits([], ["--config", "$(FILE)"], {}, {}).hidden == ("the path of --config, $(FILE), is not known",)


def test_a_configuration_file_given_with_an_equals_sign_is_not_read_by_vllm_either() -> None:
    assert limits("--config=/c.yaml", files={"/c.yaml": "max-num-seqs: 5"}) == {}


@pytest.mark.parametrize(
    "args",
    [
        ["--override-generation-config", '{"max_new_tokens": 512}'],
        ['--override-generation-config={"temperature": 0, "max_new_tokens": 512}'],
        ["--override-generation-config.max_new_tokens", "512"],
        ["--override_generation_config.max_new_tokens=512"],
        ["--generation-config", "/gen"],
        ["--config", "/c.yaml"],
    ],
)
def test_the_generation_config_caps_outputs(args: list[str]) -> None:
    files = {
        "/gen/generation_config.json": '{"max_new_tokens": 512}',
        "/c.yaml": "override-generation-config:\n  max_new_tokens: 512\n",
    }
    assert limits(*args, files=files) == {"max_output_tokens": 512}


def test_a_generation_config_without_the_cap_declares_nothing() -> None:
    for text in ("{}", "[]", "not json", '{"max_new_tokens": true}', '{"max_new_tokens": null}', "[" * 9000):
        assert limits("--override-generation-config", text) == {}


def test_blocks_count_with_a_block_size_only_and_without_the_reserved_one() -> None:
    assert limits("--num-gpu-blocks-override=1001", "--block-size", "16") == {"kv_capacity_tokens": 16_000}
    assert limits("--num-gpu-blocks-override=1001") == {}


def test_a_cache_sized_in_bytes_makes_the_utilization_void() -> None:
    assert limits("--gpu-memory-utilization=0.9", "--kv-cache-memory-bytes=20G") == {}


def test_limits_of_the_gateway_come_from_annotations() -> None:
    annotations = {"kvpressure.io/max-input-tokens": "4K", "kvpressure.io/max-output-tokens": "1024", "other": "1"}
    found = declared_limits([], ["--override-generation-config", '{"max_new_tokens": 9}'], {}, annotations)
    assert [(one.name, one.value, one.where) for one in found] == [
        ("max_input_tokens", 4096, "annotation kvpressure.io/max-input-tokens"),
        ("max_output_tokens", 1024, "annotation kvpressure.io/max-output-tokens"),
    ]


def test_variables_that_start_scripts_turn_into_flags_count_where_the_image_decides() -> None:
    env = {"VLLM_ADDITIONAL_ARGS": "--max-num-seqs 5", "SM_VLLM_MAX_MODEL_LEN": "4096"}
    found = {one.name: one.value for one in declared_limits([], [], env, {})}
    assert found == {"max_num_seqs": 5, "max_model_len": 4096}
    assert declared_limits(["vllm", "serve", "m"], [], env, {}) == ()


def test_workers_without_an_api_do_not_declare_for_the_engine() -> None:
    script = "[ $LEADER ] && vllm serve m --max-num-seqs 5 || vllm serve m --headless --max-num-seqs 6"
    assert in_shell(script) == {"max_num_seqs": 5}


SHARES = ("gpu_memory_utilization", "kv_watermark_ratio")
SPELLINGS = st.sampled_from(["{0} {1}", "{0}={1}", "{0}='{1}'", '{0} "{1}"', "{0} \\\n {1}", "{0} $V"])


@given(
    st.dictionaries(st.sampled_from(sorted(FLAGS.limits)), st.integers(1, 10**12), min_size=1),
    st.data(),
)
def test_every_spelling_gives_back_what_was_written(values: dict[str, int], data: st.DataObject) -> None:
    words, env = [], {}
    for name, value in values.items():
        text = f"0.{value}" if name in SHARES else str(value)
        option = FLAGS.limits[name][0]
        flag = "--" + "".join(c if c != "-" else data.draw(st.sampled_from("-_")) for c in option)
        spelling = data.draw(SPELLINGS).replace("$V", f"${name.upper()}")
        env[name.upper()] = text
        words.append(spelling.format(flag, text))
    script = data.draw(st.sampled_from(["vllm serve m", "exec vllm serve m", "A=1 vllm serve m"]))
    found = {one.name: one.value for one in declared_limits(["sh", "-c"], [" ".join([script, *words])], env, {})}
    assert found == {n: float(f"0.{v}" if n in SHARES else v) for n, v in values.items()}


def cost(script: str, args: list[str], env: dict[str, str]) -> tuple[int, Reading]:
    """What a whole reading takes, and what it says."""
    budget = Budget()
    start = read_start(["bash", "-c", script], args, env, budget, FILES)
    assume(not start.cut)  # an `eval` of itself never ends
    return WORK - budget.left, read_limits_of(start)


FILES = {"/c.yaml": "max-num-seqs: 5\nmax-model-len: 8k\n", "/gen/generation_config.json": '{"max_new_tokens": 11}'}
PARTS = st.sampled_from(
    (
        *("--max-num-seqs=8", "--max-model-len 4k", "--gpu-memory-utilization .5", "--config /c.yaml", "--headless"),
        *("--override-generation-config '{\"max_new_tokens\": 5}'", "--override-generation-config.max_new_tokens 7"),
        *("--generation-config /gen", "$A", "${B:-7}", '"$@"', "# x\n", "A='$A $A'; ", ";", "&", "vllm serve m"),
        *("sh -c 'vllm serve n'", "eval $A"),
    )
)


@pytest.mark.fault(
    "a start command is longer than the limit, and its last words contradict the first",
    "no limits are reported, because the rest may contradict them",
)
@given(
    st.lists(PARTS, max_size=12), st.lists(PARTS, max_size=3), st.dictionaries(st.sampled_from("AB"), PARTS), st.data()
)
def test_a_reading_says_all_or_nothing_wherever_it_is_cut(
    script: list[str], args: list[str], env: dict[str, str], data: st.DataObject
) -> None:
    text = "vllm serve m " + " ".join(script)
    work, whole_reading = cost(text, args, env)
    cut = read_start(["bash", "-c", text], args, env, Budget(data.draw(st.integers(0, work - 1))), FILES)
    assert read_limits_of(cut) == Reading(hidden=("the start command expands to more than can be read",))
    assert serving_port(cut) is None
    again = read_start(["bash", "-c", text], args, env, Budget(work), FILES)
    assert read_limits_of(again) == whole_reading


@pytest.mark.parametrize(
    "args",
    [
        ["--max-num-seqs=8", *["x"] * MAX_ENTRIES],
        ["--max-num-seqs=8", "x" * WORK],
        ["--max-num-seqs=8", "$(LONG)$(LONG)$(LONG)$(LONG)$(LONG)"],
        ["--max-num-seqs=8", "--override-generation-config", "[" * 9000],
        ["--max-num-seqs=8", "--override-generation-config", '{"max_new_tokens": 5, "x": "' + "y" * (WORK // 8) + '"}'],
        ["--max-num-seqs=8", "--config", "/bomb.yaml"],
        ["--max-num-seqs=8", "--config", "/long.yaml"],
        ["--max-num-seqs=8", "--config", "/keys.yaml"],
        ["--max-num-seqs=8", "--generation-config", "/deep"],
    ],
)
def test_arguments_and_files_that_are_more_than_can_be_read_declare_nothing(args: list[str]) -> None:
    lists = "\n".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 9))
    files = {
        "/bomb.yaml": f"l0: &l0 [x]\n{lists}\nport: *l8\n",
        "/long.yaml": f"a: &a {'x' * 9999}\nport: [{'*a, ' * 999}1]\n",
        "/keys.yaml": f"a: &a {'x' * 9999}\n" + "*a : 1\n" * 999,
        "/deep/generation_config.json": '{"a":' * 5000 + "1" + "}" * 5000,
    }
    env = {"LONG": "x" * 65536}
    annotations = {"kvpressure.io/max-input-tokens": "4K"}
    reading = read_limits([], args, env, annotations, files)
    assert reading.hidden == ("the start command expands to more than can be read",)
    assert list(reading.limits) == ["max_input_tokens"], "a gateway's own limit is no matter of the command"
    assert reading.unclear == reading.options == {}


WORDS = st.lists(
    st.one_of(
        st.text(max_size=40),
        st.sampled_from(["sh", "-c", "eval", "vllm", "serve", "--config", "/c", "--override-generation-config", "-m"]),
        st.sampled_from([f"--{option}" for option, _ in FLAGS.limits.values()]),
        st.sampled_from(["--override-generation-config.a.b.c", "--max-num-seqs.x", "--block-size=9" + "9" * 400]),
        st.integers().map(str),
    ),
    max_size=8,
)


@given(
    WORDS,
    WORDS,
    st.dictionaries(st.sampled_from(["A", "VLLM_ADDITIONAL_ARGS", "SM_VLLM_MAX_MODEL_LEN"]), st.text()),
    st.dictionaries(st.sampled_from(["kvpressure.io/max-input-tokens", "x"]), st.text()),
    st.dictionaries(st.just("/c"), st.one_of(st.text(), st.recursive(st.none(), st.lists).map(json.dumps))),
)
def test_nothing_hostile_raises_and_every_limit_is_a_sound_number(
    command: list[str], args: list[str], env: dict[str, str], annotations: dict[str, str], files: dict[str, str]
) -> None:
    found = declared_limits(command, args, env, annotations, files)
    assert [one.name for one in found] == [name for name in LIMIT_NAMES if name in {one.name for one in found}]
    assert all(math.isfinite(one.value) and one.value >= 0 and len(one.where) <= 600 for one in found)
    assert all(one.value > 0 for one in found if one.name != "kv_watermark_ratio"), "a limit of 0 is one of nothing"


@pytest.mark.parametrize(
    ("given", "ratio"),
    [("0.05", 0.05), ("0", 0.0), ("0.0", 0.0), (".3", 0.3), ("1", None), ("-0.1", None), ("x", None)],
)
def test_a_watermark_is_a_share_below_1_and_may_be_0(given: str, ratio: float | None) -> None:
    assert limits(f"--watermark={given}") == ({} if ratio is None else {"kv_watermark_ratio": ratio})


def test_marks_in_texts_are_no_watermark_of_the_cache() -> None:
    assert limits("--watermark-config", '{"key": 1}', "--max-num-seqs", "8") == {"max_num_seqs": 8}


CONDITIONAL = '[ -n "$BIG" ] && EXTRA="--max-num-seqs 64"; exec vllm serve m {}'


@pytest.mark.parametrize(
    ("words", "sure"),
    [
        ("--max-num-seqs 8 $EXTRA", 8.0),
        ("$EXTRA --max-num-seqs 8", 8.0),
        ("--max-num-seqs 4 $EXTRA --max-num-seqs 8", 8.0),
        ("--max-num-seqs 8 ${EXTRA:+--max-num-seqs 64}", 8.0),
        ("--max-num-seqs 8", 8.0),
    ],
)
def test_a_limit_as_written_is_known_and_what_is_beside_it_is_named(words: str, sure: float) -> None:
    reading = read_limits(["sh", "-c"], [CONDITIONAL.format(words)], {}, {})
    found = reading.limits.get("max_num_seqs")
    assert found is not None
    assert found.value == sure
    assert ("not known: $EXTRA" in reading.notes) == ("EXTRA" in words)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (['--kv-transfer-config={"kv_connector": "NixlConnector", "kv_role": "kv_producer"}'], 1.0),
        (["--kv-transfer-config", '{"kv_connector": "P2pNcclConnector", "kv_role": "kv_consumer"}'], 2.0),
        (["--kv-transfer-config.kv_connector=NixlConnector", "--kv-transfer-config.kv_role=kv_consumer"], 2.0),
        (['--kv-transfer-config={"kv_connector": "NixlConnector", "kv_role": "kv_both"}'], None),
        (['--kv-transfer-config={"kv_role": "kv_producer"}'], None),
        (["--kv-transfer-config=[1]"], None),
        (["--kv-transfer-config={"], None),
        (["--kv-transfer-config", "[" * 200], None),
        (["--kv-transfer-config", '{"kv_connector": "x", "kv_role": "kv_producer", "a": "' + "x" * 9000 + '"}'], None),
    ],
)
def test_the_role_of_a_connector_is_read_and_whatever_is_none_costs_nothing_else(
    given: list[str], code: float | None
) -> None:
    assert limits(*given, "--max-num-seqs=8") == {"max_num_seqs": 8.0} | ({} if code is None else {"kv_role": code})


@pytest.mark.parametrize(("given", "code"), [("prefill", 1.0), ("decode", 2.0), ("null", None), ("both", None)])
def test_the_role_of_a_server_of_sglang_is_its_disaggregation_mode(given: str, code: float | None) -> None:
    start = ["python3", "-m", "sglang.launch_server", "--model-path", "m", f"--disaggregation-mode={given}"]
    assert [one.value for one in declared_limits(start, [], {}, {}) if one.name == "kv_role"] == [code] * bool(code)
