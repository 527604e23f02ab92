"""The words of the pages that `reference_pages.py` writes, beside what the code says itself."""

from __future__ import annotations

STARTS = {
    "commands": (
        "# Commands\n\n"
        "`make docs` writes this page from the commands themselves. Data goes to stdout, progress "
        "and messages to stderr. A mistake is one sentence and exit code 2, a failure of the "
        "system exit code 1, Ctrl-C 130. `APPORTION_DEBUG=1` shows the traceback. A command that "
        "needs an [extra](extras.md) says which.\n\n"
        "`CHECKPOINT` is a folder that `train`, `convert` or `cut` wrote; `FOLDER` may also be one "
        "that `export` wrote."
    ),
    "experiments": (
        "# Experiment files\n\n"
        "`apportion run FILE` reads TOML. `make docs` writes this page from the code that checks "
        "it; an unknown key is an error that names the known ones. `train` and `convert` write "
        "such a file into their folder, with comments: the quickest way to a file of your own. "
        "[studies.md](studies.md) goes through one."
    ),
    "http": (
        "# HTTP\n\n"
        "`make docs` writes this page from [openapi.json](openapi.json), which the server gives at "
        "`/openapi.json`. [serve.md](serve.md) says what the fields mean, [policy.md](policy.md) "
        "how budgets are chosen."
    ),
    "extras": (
        "# Extras\n\n"
        "`make docs` writes this page from `pyproject.toml`. A package without extras imports "
        "quickly and runs nothing; an extra brings what one need takes, and a sentence names the "
        "extra where it is missing.\n\n"
        "```sh\n"
        "pip install 'apportion[onnx]'             # run an exported folder from Python\n"
        "pip install 'apportion[cli,onnx,serve]'   # and from the shell, and as a server\n"
        "pip install 'apportion[all]'              # everything, torch included\n"
        "```"
    ),
}

# The tables of an experiment file, in order: title, and what is to be known of all its keys.
SECTIONS = {
    "file": ("The file", "`name`, `seeds`, `task`, `model` and one `stage` are required."),
    "seeds": (
        "[seeds]",
        "Data seeds draw rows, optimisation seeds everything else. A stage is run for each "
        "optimisation seed, with the first data seed unless it says `grid = true`.",
    ),
    "text": ('[task] kind = "text"', "Texts with labels, from a folder or the hub."),
    "marked": (
        '[task] kind = "marked"',
        "The marked-token task of the paper: two markers, do the values after them match?",
    ),
    "model": (
        "[model]",
        'An encoder of our own, with the keys below. Or `pretrained = "minilm"`, a folder or a '
        "name on the hub, with an optional `digest` of the weights. Or `architecture`, a "
        "`model_type` of Transformers with random weights, with `layers`, `heads`, `hidden`, "
        "`feedforward` and `vocabulary`.",
    ),
    "stage": (
        "[[stage]]",
        "One model per seed. Each stage has one of `recipe`, `score`, `baseline` or "
        "`given = true`; a stage with a recipe also takes the keys of that recipe.",
    ),
    "recipe": ("Keys of a recipe", "In a `[[stage]]` with `recipe`, each changes one number."),
    "timing": ("[timing]", "Of stages with `latency = true`."),
    "row": ("[[row]]", "A row of the study's main table beside the paper's."),
    "claim": ("[[claim]]", "A goal: a measure between bounds, judged from the records."),
}

MEANINGS = {
    ("file", "name"): "Name of the study, of its records and of its tables.",
    ("file", "title"): "Title of its page; the name by default.",
    ("file", "beside_paper"): "What to know before comparing with the paper's numbers.",
    ("file", "figure"): "Methods that are drawn; all by default.",
    ("file", "timing"): "The table [timing] below.",
    ("file", "budgets"): "Budgets of the tables.",
    ("file", "units"): "Attention heads alone, or heads and feed-forward blocks.",
    ("file", "test_rows"): (
        'How many test rows are measured, `"all"` of the file, or `"validation"`; the task\'s own '
        "by default. Changing it trains nothing again."
    ),
    ("file", "test_seed"): "Draws a number of test rows once, the same for every data seed.",
    ("file", "answers"): "Keep what each model says of each test row beside the records.",
    ("file", "seeds"): "The table [seeds] below.",
    ("file", "task"): "The table [task] below.",
    ("file", "model"): "The table [model] below.",
    ("file", "stage"): "Tables [[stage]] below.",
    ("file", "row"): "Tables [[row]] below.",
    ("file", "claim"): "Tables [[claim]] below.",
    ("seeds", "data"): "Seeds that draw the rows of the task.",
    ("seeds", "optimisation"): "Seeds of initial weights, row order and budgets.",
    ("seeds", "paired"): "Pair each optimisation seed with the data seed at its place.",
    ("stage", "method"): "Name of the method: records, tables and other stages refer to it.",
    ("stage", "recipe"): "Train by the recipe of this name.",
    ("stage", "score"): "Order units by this score, without training.",
    ("stage", "baseline"): "Run a method of another kind on the same texts: `tfidf-logistic`.",
    ("stage", "given"): "Take the pretrained model with its own classifier as it is.",
    ("stage", "from"): "Start from the model of this earlier stage.",
    ("stage", "teacher"): "Learn from the answers of this earlier stage.",
    ("stage", "model"): "Keys of [model] that differ for this stage.",
    ("stage", "task"): "How this stage reads the texts, if not as [task] says: `length`, `tail`.",
    ("stage", "grid"): "Run every pair of data and optimisation seeds.",
    ("stage", "each"): "One model per budget in this list, trained for that budget alone.",
    ("stage", "latency"): "Time this stage's model.",
    ("stage", "keep"): "Units of each layer that a score always leaves.",
    ("stage", "nested"): "Put units into one order for all budgets.",
    ("stage", "seeds"): "Run the first so many seeds only.",
    ("stage", "search"): "Search what small budgets keep; needs `nested`.",
    ("stage", "repair"): "Fit output projections to all budgets; needs `nested`.",
    ("stage", "tune"): "Views of texts from which a scored model then learns its parent's answers.",
    ("stage", "seconds"): "Seconds that search, repair and tuning may take; then weights vary by "
    "machine.",
    ("stage", "sweep"): "Also measure the 19 budgets of the paper's sweep.",
    ("stage", "made_by"): "Keep a producer at an earlier version: `{ repair = 1 }`.",
    ("text", "data"): "A folder with `train.csv`, or a dataset of the hub.",
    ("text", "digest"): "Digest that the rows must have.",
    ("text", "length"): "Tokens per text; longer ones are cut.",
    ("text", "tail"): "Of these tokens, how many come from the end of a text that is longer; "
    "needs a pretrained model.",
    ("text", "train"): "Training rows.",
    ("text", "validation"): "Validation rows.",
    ("text", "test"): "Test rows.",
    ("text", "text"): "Columns that hold the text; several are joined.",
    ("text", "label"): "Column that holds the label.",
    ("text", "vocabulary"): "Words that our own tokenizer learns at most.",
    ("text", "min_count"): "How often a word must stand in training to be learned.",
    ("text", "unlabelled"): "Texts without labels to take at most.",
    ("text", "validation_from"): '`"test"`: validation rows are those of the test file that are '
    "not measured on.",
    ("text", "unlabelled_from"): 'Where they come from: `"file"`, `"train"` or a path.',
    ("text", "unlabelled_digest"): "Digest that their file must have.",
    ("marked", "length"): "Tokens per row.",
    ("marked", "values"): "Different values that a marker may precede.",
    ("marked", "fillers"): "Different tokens that mean nothing.",
    ("marked", "distractors"): "Values without a marker in each row.",
    ("marked", "train"): "Training rows.",
    ("marked", "validation"): "Validation rows.",
    ("marked", "test"): "Test rows.",
    ("model", "layers"): "Layers.",
    ("model", "heads"): "Attention heads per layer.",
    ("model", "hidden"): "Width of the hidden states.",
    ("model", "feedforward"): "Neurons of a feed-forward layer.",
    ("model", "norm"): "Where layer norms stand.",
    ("model", "pool"): "How tokens become one vector.",
    ("model", "positions"): "How positions are encoded.",
    ("model", "dropout"): "Dropout.",
    ("recipe", "epochs"): "Passes over the training rows.",
    ("recipe", "batch_size"): "Rows per step.",
    ("recipe", "lr"): "Learning rate of the weights.",
    ("recipe", "weight_decay"): "Weight decay.",
    ("recipe", "lam"): "λ of the paper's Eq. 5: price of the cost.",
    ("recipe", "beta"): "β of Eq. 5: price of a cost above the budget.",
    ("recipe", "T"): "Temperature of distillation.",
    ("recipe", "floor"): "Units that each layer keeps whatever the budget.",
    ("recipe", "dropout"): "Whether dropout is on in training.",
    ("timing", "batch"): "Rows per call.",
    ("timing", "single"): "Also time rows one at a time.",
    ("row", "name"): "First cell of the row.",
    ("row", "method"): "Method whose records it shows.",
    ("row", "form"): "How the budget is applied: `soft`, `hard`, `cut`, `dense`.",
    ("row", "budget"): "Budget of the row.",
    ("row", "paper_cost"): "The paper's cost, as printed.",
    ("row", "paper_accuracy"): "The paper's accuracy.",
    ("row", "paper_speedup"): "The paper's speed-up.",
    ("row", "paper_ms"): "The paper's milliseconds.",
    ("claim", "says"): "The claim in words.",
    ("claim", "by_construction"): (
        "Why no result could contradict it; such a claim never counts as one that holds."
    ),
    ("claim", "measure"): "What is measured.",
    ("claim", "method"): "Method that it is about.",
    ("claim", "form"): "Form that it is about.",
    ("claim", "budget"): "Budget that it is about.",
    ("claim", "statistic"): "What is taken over seeds.",
    ("claim", "device"): "Device that speed was measured on.",
    ("claim", "protocol"): "How texts were batched for it.",
    ("claim", "against_form"): "Form of the method that it is compared with.",
    ("claim", "against_budget"): "Budget of that method.",
    ("claim", "at_least"): "Lower bound.",
    ("claim", "at_most"): "Upper bound.",
    ("claim", "every_above"): "A bound that each seed has to pass, whatever the statistic.",
    ("claim", "cost_at_most"): "Bound on the cost at which an accuracy is claimed.",
    ("claim", "surely"): "Whether all of a difference's interval, and not its mean alone, has to "
    "lie within the bounds; needs answers that were kept.",
    ("extra", ""): "every installation",
    ("extra", "onnx"): "running an exported folder",
    ("extra", "cli"): "the command `apportion`",
    ("extra", "certify"): "making certificates",
    ("extra", "serve"): "the HTTP server",
    ("extra", "ray"): "batch jobs and studies on Ray; Parquet files",
    ("extra", "device"): "a governor that reads load, battery and temperature",
    ("extra", "train"): "loading, training, converting, cutting and timing checkpoints",
    ("extra", "hub"): "models of Transformers, datasets of the hub",
    ("extra", "minilm"): "all-MiniLM-L6-v2 from a package, without the hub",
    ("extra", "export"): "writing an exported folder",
    ("extra", "study"): "experiments with all their baselines",
    ("extra", "peers"): "other runtimes to compare with",
    ("extra", "all"): "all of the above that users need",
    ("extra", "site"): "building this site",
    ("extra", "dev"): "working on apportion",
}
