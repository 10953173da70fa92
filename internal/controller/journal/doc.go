// Package journal writes down what the cores of taint eviction and node health were told, with the
// actions that followed, and plays it again. The cores are pure, so another one that is told the
// same asks for the same, byte for byte; [Replay] checks that, and [Story] tells it of one pod or
// node.
//
// A core goes on when its journal goes on in another file: that file begins with all that the core
// knows ([eviction.Knowledge], [nodehealth.Knowledge]), so that it can be played alone.
//
// Events hold what the cores know of pods and nodes, which is little: no environment, command,
// argument, annotation or Secret is part of it.
package journal
