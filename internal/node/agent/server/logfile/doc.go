// Package logfile reads and rotates the log files that a container runtime writes, in CRI's format:
// time, stream, whether the line continues, text.
//
// Reading follows a container across rotations of its file without losing or repeating a line,
// counts lines as the program wrote them, and opens only regular files beneath the folder of the
// pod's logs: no symbolic link is followed, whoever created it. Rotated files have the kubelet's
// names, so that log collectors find what they expect.
package logfile
