import unittest

from ring import *


class Promised(unittest.TestCase):
    def test_promise(self):
        self.assertEqual(Ring(2).put(1).put(2).items(), [1, 2])
