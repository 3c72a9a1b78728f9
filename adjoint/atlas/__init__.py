"""`adjoint atlas`: documentation that is computed from the source of any tree.

The facts of one file (`facts`) follow from its bytes alone: Python's own parser (`python_source`,
`python_notes`), tree-sitter by one query for each language (`grammars`, `syntax`), documents and
data (`markup`).  Short forms of all facts (`summaries`) are read together: imports become files
(`modules`), names become definitions (`names`), sentences of documents become roles (`roles`), and
all of it both ways is what a page needs to know of the tree (`references`).  Pages are data
(`document`), built by `file_page`, `keyword_page`, `folder_pages`, `tree_pages` and `map_page`, and
written by `markdown` or `html`.  `making` does only what has changed since the last run (`store`)
and checks every link (`linkcheck`).

What the compiler makes of a function is documented in the same way (`artefacts`, `compilation`);
nothing else in the package needs torch.
"""
