"""A federation that one administrator can run: `fedmaba flower init, join, admit, start` and more.

A folder at the server and one at each site hold all there is. `server_folder` and `site_folder`
make them, `processes` runs what they describe, and `policy`, `guard` and `audit` are the site's
say in what is done there. None of it imports flwr, but for `guard`, which takes the place of
Flower's own client process.
"""
