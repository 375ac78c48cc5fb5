"""`python -m nearpeak`, for launchers that want a module: ``torchrun --nproc-per-node 2 -m nearpeak train …``."""

from nearpeak.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
