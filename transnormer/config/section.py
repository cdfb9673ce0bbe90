"""What every section of the keys is, and what a section is that one family of tasks brings along."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Unknown keys are errors, nothing is coerced (true is not 1, '8' is not 8), values are frozen once resolved."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class TaskSection(Section):
    """Keys of one family of tasks; the section is called as the family is: `lra` holds those of lra/text."""

    # Keys of `data` that have no meaning for this family.
    idle_data_keys: ClassVar[tuple[str, ...]] = ()
