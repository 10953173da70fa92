// Package live runs the core of EvictionRequests against an API server.
package live
