"""The laws, each a named test (`pytest tests/laws -k law_2`); tests of rooms repeat them where a room can break them.

1. Chunks folded are the whole answer: test_backend.py, test_real_model.py.
2. Same request, same seed, named or drawn: the same bytes, whatever runs at the same time, cached or not, drafted or
not, cut and resumed: test_backend.py, test_engine.py, test_resumed_job.py, test_real_model.py, test_real_resume.py,
test_stress.py, test_golden.py.
3. Cached is uncached, and a shared prefix is computed once: test_engine.py, test_backend.py, test_real_model.py.
4. Every accepted request ends exactly once, and leaves nothing behind: test_engine.py, test_backend.py.
5. Choices fork one prefill, and each draws its own first token: test_engine.py, test_real_model.py.
6. Deltas joined are the decoded whole; offsets count code points: test_backend.py, test_real_model.py.
7. One declaration makes schema, flags, documents and page: test_one_declaration.py, test_served_profile.py.
8. Billed tokens are the usage that clients saw, whoever is killed: test_ledger.py.
"""
