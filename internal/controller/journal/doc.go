// Package journal records the events of the cores of taint eviction and node health, together with
// the actions that followed, and replays them. The cores are pure: the same events lead to the same
// actions, byte for byte. [Replay] checks that, and [Story] tells it for one pod or node.
//
// When a journal continues in another file, the core goes on: the file begins with the core's whole
// state ([eviction.Knowledge], [nodehealth.Knowledge]), so that it can be replayed alone.
//
// Events contain what the cores know of pods and nodes, which is little: no environments, commands,
// arguments, annotations or Secrets.
package journal
