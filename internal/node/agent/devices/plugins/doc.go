// Package plugins talks to device plugins over their sockets, as the kubelet does (API v1beta1): it
// takes their registrations, follows their devices, asks them for what containers request, and
// keeps on disk who holds what. Package devices decides.
package plugins
