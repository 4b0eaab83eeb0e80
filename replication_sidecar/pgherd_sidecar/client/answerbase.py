"""What all answers of a sidecar have in common."""

from pydantic import BaseModel, ConfigDict


class AnswerBase(BaseModel):
    """An answer or a part of one.

    Fields that this version does not know are left out, so that an older client hears a newer
    sidecar.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")
