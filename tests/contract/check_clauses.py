#!/usr/bin/env python3
"""Finds clauses of a contract page without a test, and tests without a clause: check_clauses.py PAGE TEST_SOURCE..."""
import re
import sys


def main():
    page, *sources = sys.argv[1:]
    with open(page, encoding="utf-8") as file:
        clauses = re.findall(r"^- \*\*K(\d+)\*\* ", file.read(), re.M)
    tests = []
    for source in sources:
        with open(source, encoding="utf-8") as file:
            tests += re.findall(r"^TEST(?:_F|_P)?\(\w+, K(\d+)[A-Z]\w*\)", file.read(), re.M)
    problems = [f"K{clause} has {tests.count(clause)} tests, it needs one" for clause in clauses if tests.count(clause) != 1]
    problems += [f"a test names K{test}, which is no clause" for test in sorted(set(tests) - set(clauses), key=int)]
    if clauses != [str(number) for number in range(1, len(clauses) + 1)]:
        problems.append(f"the clauses of {page} are not numbered from 1 without gaps")
    if not clauses:
        problems.append(f"{page} has no clauses")
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
