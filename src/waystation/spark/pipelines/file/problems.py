"""What is wrong with a pipeline file: sentences with their lines, gathered so that all are told at once; and what went
wrong when it ran."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from waystation.errors import Invalid, WaystationError


@dataclass(frozen=True, slots=True, order=True)
class FileProblem:
    """One mistake. `line` counts from 1."""

    line: int
    text: str

    def spelled(self, file: Path) -> str:
        return f"{file}:{self.line}: {self.text}"


class PipelineInvalid(Invalid):
    """A pipeline file with mistakes; the text has one line for each."""

    def __init__(self, file: Path, problems: list[FileProblem]) -> None:
        self.file = file
        self.problems = sorted(set(problems))
        super().__init__("\n".join(problem.spelled(file) for problem in self.problems))


class PipelineFailed(WaystationError):
    """A pipeline that ran and ended with an error; the text is one sentence and names the log. `lasting`: it would end
    in the same way if it were started again."""

    def __init__(self, text: str, *, lasting: bool = False) -> None:
        super().__init__(text)
        self.lasting = lasting
