"""The one face of the core for protocols; `access.py` says what it keeps."""

from waystation.broker.access.access import Access as Access
