// Package live carries out moves in a cluster: it shows a core of package execute what the API
// server has, and sends the core's requests.
package live
