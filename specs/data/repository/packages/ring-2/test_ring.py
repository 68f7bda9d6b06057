import unittest

from ring import *


class Promised(unittest.TestCase):
    def test_promise(self):
        self.assertEqual(Ring(3).put(1).put(2).take(), 1)
