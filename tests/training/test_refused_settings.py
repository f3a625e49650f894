"""Settings of runs that contradict each other, or that a task or a device cannot have: one line says it."""

from official import config as config_lib
from official.io.errors import ConfigError

TWO = dict(distribution_strategy="mirrored", num_virtual_devices=2, all_reduce_alg="hierarchical_copy")
PIPELINE = dict(distribution_strategy="pipeline", num_virtual_devices=2)
EVALUATES = dict(do_train=False, do_eval=True)
# Of fine-tuning: `input_files` keeps the fixture from asking for synthetic data.
PREDICTIONS = config_lib.FIELDS["max_predictions_per_seq"].default
SQUAD = dict(task="squad", input_files=None, do_eval=True, max_predictions_per_seq=PREDICTIONS)
GLUE = dict(SQUAD, task="glue")
FILES = dict(SQUAD, train_file="f", predict_file="f")

REFUSED = (
    (dict(profile_steps="20,10"), "the second one after the first"),
    (dict(profile_steps="10"), "expected two steps"),
    (dict(profile_steps="-1,4"), "expected two steps"),
    (dict(profile_steps="10,21"), "is beyond the last step of the run, 20"),
    (dict(profile_steps="1,2", **EVALUATES), "needs --do_train"),
    (dict(profile_memory=True, **EVALUATES), "needs --do_train"),
    (dict(profile_steps="1,2", distribution_strategy="ipu"), "needs --distribution_strategy=one_device"),
    (dict(profile_memory=True, distribution_strategy="tpu"), "needs --distribution_strategy=one_device"),
    (dict(generated_data=True, synthetic_input=True), "generated_data excludes synthetic_input"),
    (dict(generated_data=True), "generated_data excludes use_synthetic_data"),
    (dict(compile_only=True, **EVALUATES), "compile_only=True needs --do_train"),
    (dict(log_style="poplar"), "log_style='poplar' is not one of plain, graphcore"),
    (dict(allreduce_dtype="bfloat16"), "received one_device"),
    (dict(PIPELINE, allreduce_dtype="bfloat16", pipeline_stages="a"), "received pipeline"),
    (dict(TWO, allreduce_dtype="float16"), "--loss_scale=dynamic"),
    (dict(distribution_strategy="tpu", allreduce_dtype="float16"), "Use --allreduce_dtype=bfloat16"),
    (dict(unpad=True, pack_on_the_fly=True), "unpad excludes pack_on_the_fly: which fills rows"),
    (dict(unpad=True, enable_xla=True), "enable_xla takes batches of one size"),
    (dict(unpad=True, distribution_strategy="tpu", tpu="local"), "strategy=tpu takes batches of one size"),
    (dict(unpad=True, distribution_strategy="ipu", num_gpus=0), "strategy=ipu takes batches of one size"),
    (dict(PIPELINE, unpad=True), "distribution_strategy=pipeline"),
    (dict(max_sequences_per_pack=3), "needs --pack_on_the_fly"),
    (
        dict(pack_on_the_fly=True, max_sequences_per_pack=3, average_sequences_per_pack=4.0),
        "is above max_sequences_per_pack=3",
    ),
    (dict(pack=True), "needs --task=squad or --task=glue"),
    (dict(pack_on_the_fly=True, eval_rule="mlperf_1.0"), "Give --average_sequences_per_pack"),
    (dict(static_mask=True, pack_on_the_fly=True), "static_mask excludes pack_on_the_fly"),
    (dict(static_mask=True, model=dict(block_type="groupbert")), "which block_type=groupbert looks at"),
    (dict(do_predict=True), "do_predict=True needs --task=squad or --task=glue"),
    (dict(GLUE, glue_task="rte", data_dir="d", train_file="f"), "train_file=f needs --task=squad"),
    (SQUAD, "train_file is not set"),
    (dict(SQUAD, train_file="f"), "predict_file is not set"),
    (GLUE, "data_dir is not set"),
    (dict(GLUE, data_dir="d"), "glue_task is not set"),
    (dict(GLUE, data_dir="d", glue_task="sst"), "did you mean"),
    (dict(GLUE, data_dir="d", glue_task="rte", stop_threshold=3), "Shares are fractions: 0.03"),
    (dict(FILES, warmup_steps=3, warmup_proportion=0.1), "both set the warm-up"),
    (dict(FILES, num_runs=2, do_train=False), "needs --do_train"),
    (dict(SQUAD, use_synthetic_data=True), "use_synthetic_data excludes do_eval"),
    (dict(FILES, span_places="row", unpad=True), "the padding behind a sequence, unpad leaves none"),
    (dict(FILES, span_places="row", pack=True), "the padding behind a sequence, pack leaves none"),
    (dict(FILES, pack=True, length_buckets="always"), "Drop --pack, or --length_buckets"),
    (dict(FILES, max_sequences_per_pack=3), "max_sequences_per_pack=3 needs --pack"),
    (dict(FILES, average_sequences_per_pack=2.0), "average_sequences_per_pack=2 needs --pack"),
    (dict(FILES, unpad=True, pack=True), "unpad excludes pack: which fills rows"),
    (dict(FILES, predict_epochs=3), "predict_epochs=3 needs --do_predict"),
)


def test_what_is_refused_is_one_line(make_config, vocab_file):
    wrong = []
    for settings, message in REFUSED:
        try:
            make_config(**settings, **({"vocab_file": vocab_file} if "task" in settings else {}))
            found = "nothing"
        except ConfigError as error:
            found = str(error)
        if message not in found or "\n" in found:
            wrong.append((settings, found))
    assert not wrong, wrong
