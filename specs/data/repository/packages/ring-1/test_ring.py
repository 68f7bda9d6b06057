import unittest

from ring import *


class Promised(unittest.TestCase):
    def test_promise(self):
        self.assertEqual(Ring(2).put(1).put(2).put(3).items(), [2, 3])
