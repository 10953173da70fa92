package main

// heapRoom is what a command's heap may hold beside what it needs, before what it no longer needs
// is looked for. It is never written to, and so takes no memory of its own; but the collector
// counts it, and begins when there is as much again as it counts. That spares a command that
// answers one question most collections of a small heap, and lets a large one grow by the same
// amount only.
var heapRoom []byte

const heapRoomSize = 256 << 20

// makeHeapRoom is for commands that read a state, answer, and end.
func makeHeapRoom() {
	if heapRoom == nil {
		heapRoom = make([]byte, heapRoomSize)
	}
}
