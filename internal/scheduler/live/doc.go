// Package live runs the scheduling cycle (package cycle) against an API server. It decides nothing.
//
// The core runs in the loop that the controllers use (package loop). Watches and workers never
// touch it; they leave events in its inbox. When all events are taken in, time takes effect, which
// decides one pod at most, and so on; each action that the core asks for is handed to whoever
// carries it out, and what comes of it returns as an event with the action's ticket.
//
// Bindings go to a bounded number of workers, which are sent in their order and can be withdrawn
// until one begins them. What a pod needs before (volumes, device claims, out-of-tree plugins at
// PreBind) runs on a goroutine of its own. Where it is not known whether a binding was carried out,
// the API server is asked until it is. Victims are deleted, and status and events written, by
// workers behind all that; what is written to one pod is written in the order in which the core
// said it.
package live
