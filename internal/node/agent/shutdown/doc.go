// Package shutdown terminates the pods of a machine that is being shut down, in order of their
// priority. Periods is the kubelet's configuration of how much time each group of pods gets. Logind
// delays the shutdown, by systemd's inhibitor locks over D-Bus.
//
// It imports no client, and does not decide how a pod is terminated.
package shutdown
