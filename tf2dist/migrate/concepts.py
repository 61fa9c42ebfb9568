"""The rows of docs/mapping.md, by the symbols of TensorFlow 1 that they are about."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Concept:
    """A row of the table.

    Attributes:
      row: its anchor in docs/mapping.md.
      here: what takes its place, in a few words.
      symbols: names of TensorFlow 1 without "tf."; one that ends in ".*" stands for all that is inside, too.
      words: names of methods, arguments and variables that mean this whatever they are asked of; "partitioner=" only
        where a value is given, "server.join" of whatever is called server.
      modules: of tensorflow.python, which programs imported from.
    """

    row: str
    here: str
    symbols: str = ""
    words: str = ""
    modules: str = ""


_HOOKS = "SessionRunHook SessionRunArgs SessionRunValues LoggingTensorHook FinalOpsHook GlobalStepWaiterHook FeedFnHook"

CONCEPTS = [
    Concept("cluster-spec", "TF_CONFIG, the host flags or tf2dist.Cluster", "train.ClusterSpec.* train.ClusterDef "
            "contrib.cluster_resolver.* distribute.cluster_resolver.*", "cluster_spec", "server_lib"),
    Concept("server", "tf2dist.join starts it", "train.Server train.Server.create_local_server train.Server.start "
            "train.ServerDef contrib.learn.RunConfig.*", "", "grpc_server"),
    Concept("server-join", "tf2dist.join serves, and exits when the job is done", "train.Server.join", "server.join"),
    Concept("session", "tf2dist.fit; there is no session", "Session InteractiveSession train.Server.target "
            "train.SessionManager.*", "device_filters server.target", "session session_manager"),
    Concept("device", "tf.device takes the same strings", "device DeviceSpec.* colocate_with",
            "worker_device ps_device colocate_with"),
    Concept("device-function", "strategy.scope() or tf.variable_creator_scope", "train.merge_device"),
    Concept("replica-device-setter", "strategy ps places variables by their bytes", "train.replica_device_setter",
            "ps_tasks", "device_setter"),
    Concept("load-balancing", "strategy ps does so; tf2dist.layers.ShardedEmbedding cuts what is large",
            "contrib.training.GreedyLoadBalancingStrategy contrib.training.RandomStrategy "
            "contrib.training.byte_size_load_fn", "ps_strategy"),
    Concept("partitioned-variables", "tf2dist.layers.ShardedEmbedding",
            "fixed_size_partitioner variable_axis_size_partitioner min_max_variable_partitioner "
            "nn.embedding_lookup nn.embedding_lookup_sparse", "partitioner=", "partitioned_variables"),
    Concept("log-device-placement", "tf.debugging.set_log_device_placement", "", "log_device_placement"),
    Concept("soft-placement", "tf.config.set_soft_device_placement", "ConfigProto.* GPUOptions.* OptimizerOptions.*",
            "allow_soft_placement allow_growth per_process_gpu_memory_fraction gpu_options"),
    Concept("placeholders", "data given to tf2dist.fit", "placeholder placeholder_with_default", "feed_dict"),
    Concept("queues", "tf.data; tf2dist.data.tfrecord.read",
            "train.string_input_producer train.slice_input_producer train.range_input_producer train.input_producer "
            "train.batch train.batch_join train.shuffle_batch train.shuffle_batch_join train.maybe_batch "
            "train.Coordinator.* train.LooperThread train.QueueRunner.* train.add_queue_runner "
            "train.queue_runner.* "
            "train.start_queue_runners train.match_filenames_once "
            "train.limit_epochs TFRecordReader WholeFileReader TextLineReader FIFOQueue.* "
            "RandomShuffleQueue.* PaddingFIFOQueue.* PriorityQueue.* QueueBase.* contrib.staging.*",
            "start_queue_runners enqueue_many", "queue_runner coordinator data_flow_ops"),
    Concept("iterators", "a tf.data.Dataset is iterated",
            "data.make_one_shot_iterator data.make_initializable_iterator "
            "data.Iterator.*", "make_one_shot_iterator make_initializable_iterator get_next"),
    Concept("python-functions", "tf.numpy_function", "py_func py_function"),
    Concept("initializers", "variables have their values when they are made",
            "global_variables_initializer local_variables_initializer initialize_all_variables "
            "initialize_local_variables variables_initializer report_uninitialized_variables tables_initializer",
            "init_op local_init_op ready_op"),
    Concept("variable-scopes", "a Keras layer, called again",
            "variable_scope get_variable get_variable_scope AUTO_REUSE variable_op_scope make_template",
            "reuse_variables"),
    Concept("collections-of-losses", "model.losses, model.add_loss", "add_to_collection add_to_collections "
            "get_collection get_collection_ref GraphKeys.* losses.* contrib.losses.* contrib.slim.losses.*",
            "get_collection add_to_collection"),
    Concept("l2-regularizers", "keras.regularizers.L2, of half the scale",
            "nn.l2_loss contrib.layers.l2_regularizer contrib.layers.l1_regularizer "
            "contrib.layers.apply_regularization contrib.slim.l2_regularizer contrib.slim.l1_regularizer"),
    Concept("global-step", "optimizer.iterations, tf2dist.updates",
            "train.get_or_create_global_step train.get_global_step train.create_global_step train.global_step "
            "train.assert_global_step contrib.framework.get_or_create_global_step contrib.framework.get_global_step "
            "contrib.framework.create_global_step contrib.slim.get_or_create_global_step contrib.slim.get_global_step "
            "contrib.slim.create_global_step", "global_step=", "training_util"),
    Concept("optimizers", "keras.optimizers", "train.GradientDescentOptimizer train.MomentumOptimizer "
            "train.AdamOptimizer train.RMSPropOptimizer train.Optimizer train.AdadeltaOptimizer train.FtrlOptimizer "
            "contrib.slim.learning.create_train_op contrib.training.create_train_op contrib.opt.*"),
    Concept("adagrad", "keras.optimizers.Adagrad", "train.AdagradOptimizer train.AdagradDAOptimizer"),
    Concept("exponential-decay", "keras.optimizers.schedules", "train.exponential_decay train.piecewise_constant "
            "train.polynomial_decay train.natural_exp_decay train.inverse_time_decay train.cosine_decay"),
    Concept("moving-averages", "tf2dist.optimizers.averaging.AveragingSGD", "train.ExponentialMovingAverage.*", "",
            "moving_averages"),
    Concept("towers", "strategy mirrored or central", "contrib.nccl.* contrib.all_reduce.* "
            "contrib.estimator.replicate_model_fn contrib.estimator.TowerOptimizer",
            "compute_gradients apply_gradients average_gradients collective_graph_key",
            "nccl_ops collective_ops all_reduce"),
    Concept("in-graph-replication", "tf2dist.fit's coordinator sends the work"),
    Concept("between-graph-replication", "tf2dist.fit under strategy ps"),
    Concept("sync-replicas", 'tf2dist.ParameterServer("sync")', "train.SyncReplicasOptimizer.* "
            "train.SyncReplicasOptimizerV2.* ConditionalAccumulator.* SparseConditionalAccumulator.* "
            "contrib.opt.DropStaleGradientOptimizer",
            "replicas_to_aggregate get_init_tokens_op get_chief_queue_runner make_session_run_hook chief_init_op "
            "local_step_init_op ready_for_local_init_op", "sync_replicas_optimizer"),
    Concept("backup-workers", 'tf2dist.ParameterServer("sync", backup_workers=N)', "", "total_num_replicas"),
    Concept("supervisor", "tf2dist.Checkpoint", "train.Supervisor.*",
            "managed_session prepare_or_wait_for_session recovery_wait_secs save_model_secs", "supervisor"),
    Concept("monitored-training-session", "tf2dist.fit with tf2dist.Checkpoint",
            "train.MonitoredTrainingSession train.MonitoredSession.* train.SingularMonitoredSession.* train.Scaffold.* "
            "train.ChiefSessionCreator train.WorkerSessionCreator train.SessionCreator contrib.slim.learning.train "
            "contrib.training.train contrib.training.evaluate_once contrib.training.evaluate_repeatedly",
            "is_chief save_checkpoint_secs save_checkpoint_steps chief_only_hooks", "monitored_session"),
    Concept("stop-at-step", "epochs and steps_per_epoch of tf2dist.fit", "train.StopAtStepHook"),
    Concept("nan-tensor", "tf2dist.fit raises ValueError", "train.NanTensorHook train.NanLossDuringTrainingError"),
    Concept("step-counter", "trainers.common.progress_lines.StepLines", "train.StepCounterHook"),
    Concept("checkpoint-saver", "tf2dist.Checkpoint(directory, every_steps=N)",
            "train.CheckpointSaverHook train.CheckpointSaverListener"),
    Concept("summary-saver", "trainers.common.summaries.Summaries", "train.SummarySaverHook"),
    Concept("hooks", "keras.callbacks.Callback", " ".join(f"train.{name}" for name in _HOOKS.split())
            + " train.ProfilerHook train.SecondOrStepTimer train.SessionRunContext contrib.training.StopAfterNEvalsHook"
            " contrib.training.SummaryAtEndHook",
            "", "basic_session_run_hooks session_run_hook"),
    Concept("saver", "tf2dist.Checkpoint", "train.Saver.* train.SaverDef.* train.latest_checkpoint "
            "train.get_checkpoint_state train.checkpoint_exists train.update_checkpoint_state train.import_meta_graph "
            "train.export_meta_graph",
            "", "saver"),
    Concept("checkpoint-names", "python -m tf2dist.convert_checkpoint", "train.NewCheckpointReader "
            "train.load_checkpoint train.load_variable train.list_variables train.init_from_checkpoint "
            "contrib.framework.assign_from_checkpoint contrib.framework.init_from_checkpoint "
            "contrib.framework.load_checkpoint contrib.framework.load_variable contrib.framework.list_variables"),
    Concept("summaries", "tf.summary; --logdir of the trainers", "summary.scalar summary.histogram summary.image "
            "summary.merge summary.merge_all summary.FileWriter summary.FileWriterCache train.SummaryWriter "
            "scalar_summary histogram_summary image_summary merge_summary merge_all_summaries"),
    Concept("flags", "absl.flags, absl.app", "app.flags app.flags.FLAGS app.flags.DEFINE_* app.run flags flags.FLAGS "
            "flags.DEFINE_*"),
    Concept("estimators", "tf2dist.fit, with an evaluator task", "estimator.* contrib.learn.* contrib.tpu.* tpu.* "
            "contrib.estimator.*", "", "estimator"),
    Concept("contrib-distribute", "tf2dist.join", "contrib.distribute.* distribute.*"),
    Concept("horovod", "strategy multiworker", "", "", ""),
]  # fmt: skip


def of_name(name: str) -> Concept | None:
    """The row about a full name, as "tensorflow.train.Server"; None if none is."""
    if name.partition(".")[0] == "horovod":
        return _BY_ROW["horovod"]
    parts = name.split(".")
    if "contrib" in parts:  # programs had wrappers of that name, to import it only when needed
        parts = ["tensorflow", *parts[parts.index("contrib") :]]
    if parts[0] != "tensorflow":
        return None
    parts = parts[3:] if parts[1:3] in (["compat", "v1"], ["compat", "v2"]) else parts[1:]
    if parts[:1] == ["python"]:
        return _of_python(parts)
    for end in range(min(len(parts), 8), 0, -1):
        head = ".".join(parts[:end])
        if (end == len(parts) and head in _EXACT) or head in _WITH_ALL:
            return _EXACT.get(head) or _WITH_ALL[head]
    return next((c for pattern, c in _PATTERNS if pattern.fullmatch(".".join(parts))), None)


def of_word(word: str) -> Concept | None:
    """The row about a method, an argument or a variable of this name."""
    return _WORDS.get(word)


def of_string(text: str) -> Concept | None:
    """The row about what a string means: a device of a job, a target, or a variable that holds the cluster."""
    if any(c.isspace() for c in text):
        return None
    return next((_BY_ROW[row] for pattern, row in _STRINGS if pattern.search(text)), None)


def symbols() -> dict[str, str]:
    """Every symbol that is known, as "tf.train.Server", with its row; "tf.x.*" as "tf.x"."""
    return {f"tf.{name.removesuffix('.*')}": c.row for c in CONCEPTS for name in c.symbols.split() if "_*" not in name}


def _of_python(parts: list[str]) -> Concept | None:
    """Of tensorflow.python.training.server_lib.Server: a class of that name, or else its module."""
    for part in reversed(parts):
        if part in _LAST or part in _MODULES:
            return _LAST.get(part) or _MODULES[part]
    return None


_STRINGS = [
    (re.compile(r"^(TF_CONFIG|CLUSTER_SPEC)$"), "cluster-spec"),
    (re.compile(r"/job:|^job:\w+/"), "device"),
    (re.compile(r"^grpc://"), "session"),
]
_BY_ROW = {c.row: c for c in CONCEPTS}
_EXACT = {n.removesuffix(".*"): c for c in CONCEPTS for n in c.symbols.split()}
_WITH_ALL = {n.removesuffix(".*"): c for c in CONCEPTS for n in c.symbols.split() if n.endswith(".*")}
_PATTERNS = [
    (re.compile(n.replace(".", r"\.").replace("_*", r"_\w+")), c)
    for c in CONCEPTS for n in c.symbols.split() if n.endswith("_*")
]  # fmt: skip
_WORDS = {word: c for c in CONCEPTS for word in c.words.split()}
_MODULES = {module: c for c in CONCEPTS for module in c.modules.split()}
# A class of that name is one of TensorFlow wherever it was imported from.
_LAST = {last: c for n, c in _EXACT.items() if (last := n.rpartition(".")[2])[:1].isupper() or "_" in last}
