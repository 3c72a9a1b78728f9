"""What is kept between processes: compiled code and programs, as files in a folder.

An entry is found by the *facts* that it depends on, such as the digest of a text and the CPU, and
holds bytes.  Reading trusts nothing: a file of another owner, or one that does not match its
digest, is not an entry.  A failure of the store is never a failure of a compilation.
"""
