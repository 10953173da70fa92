package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	client "k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	utilexec "k8s.io/client-go/util/exec"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	cmdexec "k8s.io/utils/exec"
)

// languages are what clients speak for exec and attach.
var languages = map[string]func(*rest.Config, *url.URL) (client.Executor, error){
	"SPDY": func(c *rest.Config, u *url.URL) (client.Executor, error) { return client.NewSPDYExecutor(c, "POST", u) },
	"WebSocket": func(c *rest.Config, u *url.URL) (client.Executor, error) {
		return client.NewWebSocketExecutor(c, "GET", u.String())
	},
}

func inEveryLanguage(t *testing.T, test func(t *testing.T, w *world, to func(path string) client.Executor)) {
	for name, newExecutor := range languages {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).serve(t)
			config := w.config(nil, "good")
			test(t, w, func(path string) client.Executor {
				executor, err := newExecutor(config, w.url(path))
				if err != nil {
					t.Fatal(err)
				}
				return executor
			})
		})
	}
}

func TestExecPassesInputOutputAndExitCode(t *testing.T) {
	inEveryLanguage(t, func(t *testing.T, w *world, to func(string) client.Executor) {
		w.runtime.run = func(_ context.Context, cmd []string, in io.Reader, out, err io.WriteCloser, _ <-chan remotecommand.TerminalSize) error {
			if _, failed := io.Copy(out, in); failed != nil {
				return failed
			}
			fmt.Fprintf(err, "ran %q", cmd)
			return cmdexec.CodeExitError{Err: errors.New("command terminated with exit code 7"), Code: 7}
		}
		sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // 1 MiB
		var out, stderr bytes.Buffer
		err := to("/exec/default/web/app?command=cat&command=-u&input=1&output=1&error=1").StreamWithContext(t.Context(),
			client.StreamOptions{Stdin: bytes.NewReader(sent), Stdout: &out, Stderr: &stderr})
		if exit, ok := err.(utilexec.CodeExitError); !ok || exit.Code != 7 {
			t.Errorf("ended with %v", err)
		}
		if !bytes.Equal(out.Bytes(), sent) || stderr.String() != `ran ["cat" "-u"]` {
			t.Errorf("%d bytes of %d came back, and %q", out.Len(), len(sent), stderr.String())
		}
		if asked := w.runtime.questions(); !slices.Equal(asked, []string{`exec c-app ["cat" "-u"]`}) {
			t.Errorf("the runtime was asked for %v", asked)
		}
	})
}

// sizes is a terminal that is resized.
type sizes chan client.TerminalSize

func (s sizes) Next() *client.TerminalSize {
	size, ok := <-s
	if !ok {
		return nil
	}
	return &size
}

func TestExecPassesTheSizeOfTheTerminal(t *testing.T) {
	inEveryLanguage(t, func(t *testing.T, w *world, to func(string) client.Executor) {
		w.runtime.run = func(_ context.Context, _ []string, in io.Reader, out, err io.WriteCloser, resize <-chan remotecommand.TerminalSize) error {
			if err != nil {
				return errors.New("a terminal has no stderr of its own")
			}
			for range 2 {
				size := <-resize
				fmt.Fprintf(out, "%dx%d;", size.Width, size.Height)
			}
			return nil
		}
		terminal := make(sizes, 2)
		terminal <- client.TerminalSize{Width: 80, Height: 24}
		terminal <- client.TerminalSize{Width: 132, Height: 50}
		defer close(terminal)
		var out bytes.Buffer
		// kubectl leaves error out itself; others do not.
		err := to("/exec/default/web/shell?command=sh&input=1&output=1&error=1&tty=1").StreamWithContext(t.Context(),
			client.StreamOptions{Stdin: strings.NewReader(""), Stdout: &out, Tty: true, TerminalSizeQueue: terminal})
		if err != nil || out.String() != "80x24;132x50;" {
			t.Errorf("%q, %v", out.String(), err)
		}
	})
}

func TestAttachUsesTheTerminalThatTheContainerHas(t *testing.T) {
	inEveryLanguage(t, func(t *testing.T, w *world, to func(string) client.Executor) {
		w.runtime.attached = func(in io.Reader, out io.WriteCloser) error {
			if in == nil {
				return nil
			}
			_, err := io.Copy(out, in)
			return err
		}
		var out bytes.Buffer
		err := to("/attach/default/web/app?input=1&output=1").StreamWithContext(t.Context(),
			client.StreamOptions{Stdin: strings.NewReader("hello"), Stdout: &out})
		if err != nil || out.String() != "hello" {
			t.Errorf("%q, %v", out.String(), err)
		}
		out.Reset()
		err = to("/attach/default/web/shell?input=1&output=1&error=1&tty=1").StreamWithContext(t.Context(),
			client.StreamOptions{Stdin: strings.NewReader("hello"), Stdout: &out, Tty: true})
		if err != nil || out.String() != "hello" {
			t.Errorf("with a terminal: %q, %v", out.String(), err)
		}
		// Who asks for stderr gets it with the rest.
		_ = to("/attach/default/web/shell?output=1&error=1").StreamWithContext(t.Context(), client.StreamOptions{Stdout: io.Discard, Stderr: io.Discard})
		want := []string{"attach c-app tty=false stderr=false", "attach c-shell tty=true stderr=false", "attach c-shell tty=true stderr=false"}
		if asked := w.runtime.questions(); !slices.Equal(asked, want) {
			t.Errorf("the runtime was asked for %v", asked)
		}
	})
}

func TestStreamsThatCannotBeAreRefused(t *testing.T) {
	w := newWorld(t).serve(t)
	for path, want := range map[string]struct {
		code int
		text string
	}{
		"/exec/default/web/app?command=id":                    {400, "you must specify at least 1 of stdin, stdout, stderr"},
		"/exec/default/web/app?output=1":                      {400, "you must specify at least 1 command"},
		"/exec/default/web/none?command=id&output=1":          {404, `container "none" not found in pod "web"`},
		"/exec/default/web/crashing?command=id&output=1":      {404, `container not found ("crashing")`},
		"/exec/default/none/app?command=id&output=1":          {404, `pod "none" does not exist`},
		"/exec/default/web/uid-web/app?command=id":            {400, "you must specify at least 1 of stdin, stdout, stderr"},
		"/exec/default/web/uid-other/app?command=id&output=1": {404, "another UID"},
		"/attach/default/web/app":                             {400, "you must specify at least 1 of stdin, stdout, stderr"},
		"/attach/default/web/init?output=1":                   {404, `container not found ("init")`},
		"/portForward/default/none":                           {404, `pod "none" does not exist`},
		"/portForward/default/web/uid-other":                  {404, "another UID"},
		"/containerLogs/default/web/app":                      {404, "the runtime keeps no log"},
	} {
		r, err := http.NewRequest("GET", path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header = http.Header{"Authorization": {"Bearer good"}, "Connection": {"Upgrade"}, "Upgrade": {"SPDY/3.1"}}
		if out := w.answerTo(r); out.Code != want.code || !strings.Contains(out.Body.String(), want.text) {
			t.Errorf("%s: %d %s; wanted %d %s", path, out.Code, out.Body, want.code, want.text)
		}
	}
	r, _ := http.NewRequest("GET", "/portForward/default/web?port=0", nil)
	r.Header = http.Header{"Authorization": {"Bearer good"}, "Connection": {"Upgrade"}, "Upgrade": {"websocket"}}
	if out := w.answerTo(r); out.Code != 400 || !strings.Contains(out.Body.String(), "as a port") {
		t.Errorf("port 0: %d %s", out.Code, out.Body)
	}
	for _, asked := range w.runtime.questions() {
		if !strings.HasPrefix(asked, "status") {
			t.Errorf("the runtime was asked for %s", asked)
		}
	}
}

func TestExecWithoutTheRightIsRefused(t *testing.T) {
	w := newWorld(t).serve(t)
	w.policy.allowed = func(_, question string) bool { return question == "get nodes/proxy" }
	for name, newExecutor := range languages {
		executor, err := newExecutor(w.config(w.authority.client(t, "reader"), ""), w.url("/exec/default/web/app?command=id&output=1"))
		if err != nil {
			t.Fatal(err)
		}
		err = executor.StreamWithContext(t.Context(), client.StreamOptions{Stdout: io.Discard})
		if err == nil || !strings.Contains(strings.ToLower(err.Error()), "forbidden") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if asked := w.runtime.questions(); len(asked) > 0 {
		t.Errorf("the runtime was asked for %v", asked)
	}
}

// forwarders are what clients speak for port-forward.
var forwarders = map[string]func(*rest.Config, *url.URL) (httpstream.Dialer, error){
	"SPDY": func(c *rest.Config, u *url.URL) (httpstream.Dialer, error) {
		transport, upgrader, err := spdy.RoundTripperFor(c)
		if err != nil {
			return nil, err
		}
		return spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, "POST", u), nil
	},
	"WebSocket": func(c *rest.Config, u *url.URL) (httpstream.Dialer, error) {
		return portforward.NewSPDYOverWebsocketDialerForStreaming(u, c)
	},
}

// forwarded listens on a port of this machine, as kubectl port-forward does.
func forwarded(t *testing.T, dialer httpstream.Dialer) (address string, stop func()) {
	t.Helper()
	end, ready := make(chan struct{}), make(chan struct{})
	forwarder, err := portforward.NewForStreaming(dialer, []string{"0:80"}, end, ready, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- forwarder.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	ports, err := forwarder.GetPorts()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", ports[0].Local), func() { close(end); <-done }
}

// echo sends and expects the same back, while it still sends.
func echo(t *testing.T, address string, size int) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close()
	sent := make([]byte, size)
	for i := range sent {
		sent[i] = byte(i * 7 >> 3)
	}
	failed := make(chan error, 1)
	go func() {
		_, err := conn.Write(sent)
		failed <- errors.Join(err, conn.(*net.TCPConn).CloseWrite())
	}()
	received, err := io.ReadAll(conn)
	if err = errors.Join(err, <-failed); err != nil || !bytes.Equal(received, sent) {
		t.Errorf("%d of %d bytes came back, %v", len(received), size, err)
	}
}

func TestPortForwardPassesDataBothWays(t *testing.T) {
	for name, newDialer := range forwarders {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).serve(t)
			w.runtime.forward = func(port int32, stream io.ReadWriteCloser) error {
				defer stream.Close()
				if port == 81 {
					return errors.New("nobody listens there")
				}
				_, err := io.Copy(stream, stream)
				return err
			}
			dialer, err := newDialer(w.config(w.authority.client(t, "kube-apiserver"), ""), w.url("/portForward/default/web"))
			if err != nil {
				t.Fatal(err)
			}
			address, stop := forwarded(t, dialer)
			defer stop()
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() { echo(t, address, 1<<20) })
			}
			all.Wait()
			if asked := w.runtime.questions(); !slices.Contains(asked, "port-forward sandbox-web") {
				t.Errorf("the runtime was asked for %v", asked)
			}
		})
	}
}

// waiting is a command that says that it has begun, and ends when its input does. Once the client
// has heard that, all of the connection stands.
func waiting(ended chan<- struct{}) func(context.Context, []string, io.Reader, io.WriteCloser, io.WriteCloser, <-chan remotecommand.TerminalSize) error {
	return func(_ context.Context, _ []string, in io.Reader, out, _ io.WriteCloser, _ <-chan remotecommand.TerminalSize) error {
		defer close(ended)
		_, err := io.WriteString(out, "begun")
		_, err2 := io.Copy(io.Discard, in)
		return errors.Join(err, err2)
	}
}

// begin starts such a command, and returns when it has begun.
func begin(t *testing.T, ctx context.Context, executor client.Executor, stdin io.Reader) (done <-chan error, closeOutput func()) {
	t.Helper()
	heard, output := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- executor.StreamWithContext(ctx, client.StreamOptions{Stdin: stdin, Stdout: output})
	}()
	if _, err := io.ReadFull(heard, make([]byte, len("begun"))); err != nil {
		t.Fatal(err)
	}
	return ended, func() { _ = heard.Close() }
}

const waitPath = "/exec/default/web/app?command=sleep&input=1&output=1"

// A client that goes away in the middle of something leaves nothing behind, on either side of the
// server.
func TestAClientThatGoesAwayLeavesNothingBehind(t *testing.T) {
	inEveryLanguage(t, func(t *testing.T, w *world, to func(string) client.Executor) {
		w.get(t, nil, "good", "GET", "/healthz") // the server has begun: what it needs itself is there
		before := goleak.IgnoreCurrent()
		ended := make(chan struct{})
		w.runtime.run = waiting(ended)
		ctx, cancel := context.WithCancel(t.Context())
		stdin, input := io.Pipe()
		done, closeOutput := begin(t, ctx, to(waitPath), stdin)
		cancel()
		<-done
		<-ended
		_ = input.Close()
		closeOutput()
		eventually(t, "its connection is closed", func() bool { return w.connections.Load() == 0 })
		var left error
		defer func() {
			if t.Failed() {
				t.Log(left)
			}
		}()
		eventually(t, "no goroutine is left", func() bool {
			left = goleak.Find(before, theirs)
			return left == nil
		})
	})
}

// A command that neither reads nor writes does not notice; the server does.
func TestAClientThatGoesAwayIsNoticedWithoutTraffic(t *testing.T) {
	inEveryLanguage(t, func(t *testing.T, w *world, to func(string) client.Executor) {
		end := make(chan struct{})
		w.runtime.run = func(_ context.Context, _ []string, _ io.Reader, out, _ io.WriteCloser, _ <-chan remotecommand.TerminalSize) error {
			_, err := io.WriteString(out, "begun")
			<-end
			return err
		}
		defer close(end)
		ctx, cancel := context.WithCancel(t.Context())
		done, closeOutput := begin(t, ctx, to("/exec/default/web/app?command=sleep&output=1"), nil)
		defer closeOutput()
		cancel()
		<-done
		eventually(t, "nothing is open any more", func() bool {
			w.streams.mu.Lock()
			defer w.streams.mu.Unlock()
			return w.streams.open == 0 && w.connections.Load() == 0
		})
	})
}

func TestStreamsEndWithTheServer(t *testing.T) {
	inEveryLanguage(t, func(t *testing.T, w *world, to func(string) client.Executor) {
		ended := make(chan struct{})
		w.runtime.run = waiting(ended)
		stdin, input := io.Pipe()
		done, closeOutput := begin(t, t.Context(), to(waitPath), stdin)
		w.stop()
		<-done
		<-ended
		_ = input.Close()
		closeOutput()
	})
}
