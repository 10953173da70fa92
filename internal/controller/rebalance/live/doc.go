// Package live carries out moves on a cluster: it shows a core of package execute what the API
// server has, and sends the requests that the core asks for.
package live
