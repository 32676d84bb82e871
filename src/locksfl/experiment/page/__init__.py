"""report.html: what a run did and what it promises, for people who were not there.

One file that needs no network, no server and no program but a browser. There are two of them:

* the server's page stands in the run folder and has its secrets in it;
* the public page is a part of the bundle, and a function of what the bundle tells
  (a `record.Statement`) and of nothing else: the same document gives the same bytes.

`story` reads either, `sections` and `server` say it in blocks, `sheet` puts all into the template;
the charts are drawn by `locksfl._svg`.
"""

from locksfl.experiment.page.server import ServerFacts, draw_page, server_page
from locksfl.experiment.page.several import several_page
from locksfl.experiment.page.sheet import public_page

__all__ = ["ServerFacts", "draw_page", "public_page", "server_page", "several_page"]
