"""A read-only web page of a log directory: `lastword console`, and `lastword serve --console`.

The page shows the rows that the commands print with `--json`, by the same functions. It polls the directory
once for all viewers, and not without viewers. It reads no records because a viewer looks: garbage comes from
the garbage index, and each scan is a button that names its bytes. No request changes anything.

    watch.py     the poll: rows of each partition, and samples of each topic over time
    reports.py   the answers of /api/...: rows of one topic, records, plans, groups
    app.py       routes, the guard (token, Host, Origin), events, and the server in a thread
    static/      the page: HTML, CSS and JavaScript, without a build step
"""

from __future__ import annotations
