package e2eagent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// transports are the two ways in which kubectl opens streams.
var transports = map[string]string{"WebSocket": "true", "SPDY": "false"}

func inBothTransports(t *testing.T, test func(t *testing.T, env []string)) {
	for name, on := range transports {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, []string{"KUBECTL_REMOTE_COMMAND_WEBSOCKETS=" + on, "KUBECTL_PORT_FORWARD_WEBSOCKETS=" + on})
		})
	}
}

// command is kubectl as a process of its own, for whoever wants to talk with it.
func (n *node) command(ctx context.Context, env []string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "berth"), append([]string{"kubectl"}, args...)...)
	cmd.Env = append(append(os.Environ(), "KUBECONFIG="+n.kubeconfig), env...)
	return cmd
}

// exec runs a command in a container, with input, and gives what comes of it.
func (n *node) exec(t *testing.T, env []string, stdin io.Reader, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := n.command(ctx, env, args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

const idlePod = `
apiVersion: v1
kind: Pod
metadata: {name: idle}
spec:
  nodeSelector: {kubernetes.io/hostname: $NODE}
  terminationGracePeriodSeconds: 0
  containers:
  - {name: main, image: $IMAGE, imagePullPolicy: IfNotPresent, command: [sleep, infinity]}
  - {name: other, image: $IMAGE, imagePullPolicy: IfNotPresent, command: [sleep, infinity]}
`

func TestExec(t *testing.T) {
	t.Parallel()
	n := sharedNode(t)
	ns := n.namespace(t)
	n.apply(t, ns, idlePod)
	n.awaitPod(t, ns, "idle", "ready", ready)
	// Run inside a group of its own: parallel parts end before the namespace goes.
	t.Run("by", func(t *testing.T) {
		inBothTransports(t, func(t *testing.T, env []string) {
			sent := strings.Repeat("0123456789abcde\n", 1<<16) // 1 MiB
			out, stderr, code := n.exec(t, env, strings.NewReader(sent), "-n", ns, "exec", "-i", "idle", "-c", "main", "--", "sh", "-c", "cat; echo to stderr >&2; exit 7")
			if out != sent || !strings.Contains(stderr, "to stderr") || code != 7 {
				t.Errorf("%d bytes of %d, %q, exit code %d", len(out), len(sent), stderr, code)
			}
			out, _, code = n.exec(t, env, nil, "-n", ns, "exec", "idle", "-c", "other", "--", "cat", "/proc/1/cmdline")
			if out != "sleep\x00infinity\x00" || code != 0 {
				t.Errorf("in the other container: %q, %d", out, code)
			}
			if _, stderr, code = n.exec(t, env, nil, "-n", ns, "exec", "idle", "-c", "main", "--", "/no/such/program"); code == 0 {
				t.Errorf("a program that is not there: %q", stderr)
			}
			if _, stderr, code = n.exec(t, env, nil, "-n", ns, "exec", "idle", "-c", "none", "--", "id"); code == 0 || !strings.Contains(stderr, "none") {
				t.Errorf("a container that is not there: %q, %d", stderr, code)
			}
		})
	})
}

func TestExecWithATerminal(t *testing.T) {
	t.Parallel()
	n := sharedNode(t)
	ns := n.namespace(t)
	n.apply(t, ns, idlePod)
	n.awaitPod(t, ns, "idle", "ready", ready)
	t.Run("by", func(t *testing.T) {
		inBothTransports(t, func(t *testing.T, env []string) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			cmd := n.command(ctx, env, "-n", ns, "exec", "-it", "idle", "-c", "main", "--", "sh")
			terminal := startInTerminal(t, cmd, 80, 24)
			terminal.expect(t, "# ")
			terminal.send(t, "stty size\n")
			terminal.expect(t, "24 80")
			terminal.resize(t, 132, 50)
			// The new size is passed on when it is, not at once: it is asked for until it is there.
			eventually(t, "the new size", func() error {
				terminal.send(t, "stty size\n")
				terminal.expect(t, "# ")
				if !strings.Contains(terminal.seen(), "50 132") {
					return fmt.Errorf("seen: %q", terminal.seen())
				}
				return nil
			})
			terminal.send(t, "echo sle''eps; sleep 1000\n")
			terminal.expect(t, "sleeps")
			// Ctrl-C ends what runs there, not kubectl. One that comes before the shell has begun
			// it is lost.
			eventually(t, "Ctrl-C is heard", func() error {
				terminal.send(t, "\x03")
				if !strings.Contains(terminal.seen()[terminal.from:], "# ") {
					return fmt.Errorf("seen: %q", terminal.seen())
				}
				return nil
			})
			terminal.send(t, "echo st''ill here; exit 5\n")
			terminal.expect(t, "still here")
			if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 5 {
				t.Errorf("ended with %v; seen: %q", err, terminal.seen())
			}
		})
	})
}

func TestAttach(t *testing.T) {
	t.Parallel()
	n := sharedNode(t)
	ns := n.namespace(t)
	for _, name := range []string{"websocket", "spdy"} {
		n.apply(t, ns, strings.ReplaceAll(`
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  nodeSelector: {kubernetes.io/hostname: $NODE}
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: $IMAGE, imagePullPolicy: IfNotPresent, stdin: true, stdinOnce: true, command: [sh, -c, "while read line; do echo heard $line; done; echo end of input"]}]
`, "NAME", name))
	}
	t.Run("by", func(t *testing.T) {
		inBothTransports(t, func(t *testing.T, env []string) {
			name := strings.ToLower(filepath.Base(t.Name()))
			n.awaitPod(t, ns, name, "ready", ready)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			cmd := n.command(ctx, env, "-n", ns, "attach", "-i", name)
			input, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			var out printed
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			// A line that was said before the runtime was attached is heard, but its answer may be
			// said to nobody.
			eventually(t, "an answer", func() error {
				fmt.Fprintln(input, "hello")
				if !strings.Contains(out.String(), "heard hello") {
					return fmt.Errorf("seen: %q", out.String())
				}
				return nil
			})
			_ = input.Close()
			if err := cmd.Wait(); err != nil {
				t.Errorf("%v: %s", err, out.String())
			}
			// stdinOnce: the end of the input is the program's, too.
			n.awaitPod(t, ns, name, "done", func(pod *v1.Pod) bool { return pod.Status.Phase == v1.PodSucceeded })
			if logs := n.do(t, "-n", ns, "logs", name); !strings.HasSuffix(logs, "heard hello\nend of input\n") {
				t.Errorf("logs: %q", logs)
			}
		})
	})
}

func TestPortForward(t *testing.T) {
	t.Parallel()
	n := sharedNode(t)
	ns := n.namespace(t)
	n.apply(t, ns, `
apiVersion: v1
kind: Pod
metadata: {name: echo}
spec:
  nodeSelector: {kubernetes.io/hostname: $NODE}
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: $IMAGE, imagePullPolicy: IfNotPresent, command: [nc, -ll, -p, "7777", -e, cat]}]
`)
	n.awaitPod(t, ns, "echo", "ready", ready)
	t.Run("by", func(t *testing.T) {
		inBothTransports(t, func(t *testing.T, env []string) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			cmd := n.command(ctx, env, "-n", ns, "port-forward", "pod/echo", ":7777", ":7778")
			var out printed
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { cancel(); _ = cmd.Wait() }()
			forwarded := regexp.MustCompile(`Forwarding from (127\.0\.0\.1:\d+) -> 7777`)
			eventually(t, "the ports are forwarded", func() error {
				if !forwarded.MatchString(out.String()) {
					return errors.New(out.String())
				}
				return nil
			})
			address := forwarded.FindStringSubmatch(out.String())[1]
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() {
					if err := echo(address, 1<<20); err != nil {
						t.Errorf("%v; kubectl says: %s", err, out.String())
					}
				})
			}
			all.Wait()
		})
	})
}

// echo sends and expects the same back. The far end has no half-closed connections: it is closed
// when all is back.
func echo(address string, size int) error {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	sent, received := make([]byte, size), make([]byte, size)
	for i := range sent {
		sent[i] = byte(i * 7 >> 3)
	}
	failed := make(chan error, 1)
	go func() {
		_, err := conn.Write(sent)
		failed <- err
	}()
	if n, err := io.ReadFull(conn, received); err != nil {
		return fmt.Errorf("%d of %d bytes came back: %w", n, size, err)
	}
	if err := <-failed; err != nil {
		return err
	}
	if !slices.Equal(sent, received) {
		return errors.New("something else came back")
	}
	return nil
}

func TestLogs(t *testing.T) {
	t.Parallel()
	n := sharedNode(t)
	ns := n.namespace(t)
	n.apply(t, ns, `
apiVersion: v1
kind: Pod
metadata: {name: talks}
spec:
  nodeSelector: {kubernetes.io/hostname: $NODE}
  terminationGracePeriodSeconds: 0
  initContainers: [{name: first, image: $IMAGE, imagePullPolicy: IfNotPresent, command: [echo, init]}]
  containers:
  - name: steady
    image: $IMAGE
    imagePullPolicy: IfNotPresent
    command: [sh, -c, "for i in 1 2 3 4 5; do echo line $i; done; sleep infinity"]
  - {name: errs, image: $IMAGE, imagePullPolicy: IfNotPresent, command: [sh, -c, "echo to stderr >&2; sleep infinity"]}
  - {name: fails, image: $IMAGE, imagePullPolicy: IfNotPresent, command: [sh, -c, "echo run; test -e /tmp/x || exit 1"]}
`)
	n.awaitPod(t, ns, "talks", "restarted", func(pod *v1.Pod) bool {
		for _, c := range pod.Status.ContainerStatuses {
			if c.Name == "fails" {
				return c.RestartCount > 0 && c.LastTerminationState.Terminated != nil
			}
		}
		return false
	})
	steady := []string{"-n", ns, "logs", "talks", "-c", "steady"}
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"all":         {steady, "line 1\nline 2\nline 3\nline 4\nline 5\n"},
		"tail":        {append(slices.Clone(steady), "--tail=2"), "line 4\nline 5\n"},
		"limit-bytes": {append(slices.Clone(steady), "--limit-bytes=10"), "line 1\nlin"},
		"since":       {append(slices.Clone(steady), "--since-time=2100-01-01T00:00:00Z"), ""},
		"previous":    {[]string{"-n", ns, "logs", "talks", "-c", "fails", "--previous"}, "run\n"},
		"init":        {[]string{"-n", ns, "logs", "talks", "-c", "first"}, "init\n"},
		"all containers": {[]string{"-n", ns, "logs", "talks", "--all-containers", "--prefix", "--tail=1"},
			"[pod/talks/first] init\n[pod/talks/steady] line 5\n[pod/talks/errs] to stderr\n[pod/talks/fails] run\n"},
	} {
		eventually(t, name, func() error {
			out, err := n.kubectl(c.args...)
			if err == nil && out != c.want {
				err = fmt.Errorf("%q, wanted %q", out, c.want)
			}
			return err
		})
	}
	stamped := regexp.MustCompile(`(?m)^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z line \d$`)
	if out := n.do(t, append(slices.Clone(steady), "--timestamps", "--since=1h")...); len(stamped.FindAllString(out, -1)) != 5 {
		t.Errorf("timestamps: %q", out)
	}
	for _, wrong := range [][]string{{"-c", "none"}, {"-c", "steady", "--previous"}} {
		if out, err := n.kubectl(append([]string{"-n", ns, "logs", "talks"}, wrong...)...); err == nil {
			t.Errorf("%v: %q", wrong, out)
		}
	}
}

// Whoever follows a log sees every line once, also those around a rotation.
func TestLogsAreFollowedThroughRotation(t *testing.T) {
	t.Parallel()
	n := newNode(t, "rotates", "--container-log-max-size=16Ki", "--container-log-max-files=3")
	ns := n.namespace(t)
	n.apply(t, ns, `
apiVersion: v1
kind: Pod
metadata: {name: busy}
spec:
  nodeSelector: {kubernetes.io/hostname: $NODE}
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: $IMAGE, imagePullPolicy: IfNotPresent, command: [sh, -c, "echo waiting; while ! test -e /tmp/start; do usleep 10000; done; i=0; while ! test -e /tmp/stop; do echo line $i; i=$((i+1)); usleep 2000; done; echo in all $i"]}]
`)
	pod := n.awaitPod(t, ns, "busy", "ready", ready)
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	cmd := n.command(ctx, nil, "-n", ns, "logs", "-f", "busy")
	var out printed
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// The log begins with the follower: what was rotated before is not shown, as kubelet's.
	eventually(t, "the log is followed", func() error {
		if out.String() != "waiting\n" {
			return fmt.Errorf("seen: %q", out.String())
		}
		return nil
	})
	n.do(t, "-n", ns, "exec", "busy", "--", "touch", "/tmp/start")
	folder := filepath.Join(n.dir, "logs", ns+"_busy_"+string(pod.UID), "c")
	eventually(t, "the log is rotated", func() error {
		files, err := filepath.Glob(filepath.Join(folder, "0.log.*"))
		if err == nil && len(files) == 0 {
			err = errNotYet
		}
		return err
	})
	// The end of the container may kill what ends it.
	_, _ = n.kubectl("-n", ns, "exec", "busy", "--", "touch", "/tmp/stop")
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")[1:]
	for i, line := range lines[:len(lines)-1] {
		if line != fmt.Sprintf("line %d", i) {
			t.Fatalf("line %d of %d is %q", i, len(lines), line)
		}
	}
	if last := lines[len(lines)-1]; last != fmt.Sprintf("in all %d", len(lines)-1) {
		t.Errorf("%d lines were seen, and %q", len(lines)-1, last)
	}
}
