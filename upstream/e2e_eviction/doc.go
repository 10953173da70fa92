// Package e2eeviction shows node health and taint eviction on a real API
// server: stock kubectl puts taints on, `berth controller` runs as a process of
// its own that can be killed, nodes are objects whose leases the tests renew.
package e2eeviction
