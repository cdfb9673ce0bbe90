"""What every section of the keys is, and what a section is that one family of tasks brings along."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict

# Far above any real run, and far below where 64-bit integers and float32 end: a slip of the keyboard is refused.
MAX_COUNT = 10**12
MAX_FACTOR = 1e3


class Section(BaseModel):
    """Unknown keys are errors, nothing is coerced (true is not 1, '8' is not 8), values are frozen once resolved."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class TaskSection(Section):
    """Keys of one family of tasks; the section is called as the family is: `lra` holds those of lra/text."""

    # Keys of `data` that have no meaning for this family.
    idle_data_keys: ClassVar[tuple[str, ...]] = ()
