// Package shutdown ends the pods of a machine that is shut down, in the order of their priority,
// while there is time: Periods are the kubelet's configuration of how long each group of pods gets,
// and Logind is what delays the machine, systemd's inhibitor over D-Bus.
//
// It imports no client, and decides nothing about how a pod ends.
package shutdown
