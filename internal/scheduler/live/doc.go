// Package live runs the scheduling cycle (package cycle) against an API server. It decides nothing.
//
// The core runs in the loop that the controllers use (package loop). Watches and workers never
// touch it; they leave events in its inbox. When all events have been taken in, a tick decides one
// pod at most, and so on. Each action of the core is handed to workers or a goroutine, and its
// outcome returns as an event with the action's ticket.
//
// Bindings go to a bounded number of workers in their order, and can be withdrawn until one begins
// them. What a pod needs before (volumes, device claims, out-of-tree plugins at PreBind) runs on a
// goroutine of its own. If it is not known whether a binding or an allocation of devices was
// carried out, the API server is asked until it is. Other workers delete victims and write
// statuses, and events give way to bindings; writes to one pod keep the order of the core's
// actions.
package live
