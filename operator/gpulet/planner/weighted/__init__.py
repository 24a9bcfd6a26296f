"""The weighted split: replicas of one model may differ in size, each takes rate in proportion to what it sustains.

From the problem to slots: ``market`` (what there is to take, and what each model could do with it), ``patterns`` (ways
to cover a model's rate), ``prices`` (what a slot costs, and with it a lower bound), ``descent`` (one pattern a model),
``layout`` (how many GPUs are cut how), ``seats`` (on which GPU and placement). ``aggregate`` is the exact program that
proves small answers, ``search`` puts them together, ``admit`` decides who is left out.
"""
