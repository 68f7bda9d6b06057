class Ring:
    def __init__(self, size):
        self.size = size
        self.held = []

    def put(self, item):
        self.held.append(item)
        if len(self.held) > self.size:
            del self.held[-1]
        return self

    def take(self):
        return self.held.pop(0) if self.held else None

    def items(self):
        return list(self.held)
