"""The suite over real templates and tokenizers, which only `make test-real` collects."""

from __future__ import annotations

import warnings

with warnings.catch_warnings():  # third-party packages warn while they are imported, and warnings are errors here
    warnings.simplefilter("ignore")
    import transformers.utils.chat_template_utils  # noqa: F401
