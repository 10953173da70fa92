// Package logfile reads and rotates the log files that a container runtime
// writes for containers, in the format of the CRI: time, stream, whether the
// line goes on, text.
//
// Reading follows a container that writes on while its file is rotated without
// losing or repeating a line, counts lines as the program wrote them, and opens
// nothing but regular files beneath the folder of the pod's logs: no symbolic
// link is followed, whoever put it there. Rotation keeps the names that kubelet
// gives, so that log collectors find what they expect.
package logfile
