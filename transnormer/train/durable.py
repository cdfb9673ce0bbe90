"""Names that have moved to `transnormer.files`."""

from transnormer.files import disk_errors, write_json, write_text

__all__ = ["disk_errors", "write_json", "write_text"]
