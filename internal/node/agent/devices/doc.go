// Package devices keeps account of the devices that device plugins offer on a node: which there
// are, which are healthy, and which container holds which. It decides what a container is given,
// and says what its holder gets from the plugin; package plugins talks to the plugins, and keeps
// the account on disk.
//
// The rules are those of the kubelet's device manager, with its topology hints.
package devices
