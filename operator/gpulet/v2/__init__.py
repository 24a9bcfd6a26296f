"""The v2 inference protocol, as far as Gpulet speaks it: made-up requests, a small client. Standard library only."""
