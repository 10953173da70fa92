package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/node/agent/lifecycle"
)

// Hooks runs a container's postStart and preStop hooks.
type Hooks struct{ options Options }

// NewHooks returns hooks that run with these options. Report is not needed.
func NewHooks(options Options) *Hooks { return &Hooks{options} }

// PostStart runs the container's hook after its start, if it has one. Its error is the message of
// the status with the reason PostStartHookError; the container must be killed then.
func (h *Hooks) PostStart(ctx context.Context, pod *v1.Pod, c *v1.Container, containerID, podIP string) error {
	if c.Lifecycle == nil || c.Lifecycle.PostStart == nil {
		return nil
	}
	err := h.run(ctx, pod, c, c.Lifecycle.PostStart, containerID, podIP)
	if err != nil {
		// The event does not say why: it could tell a secret that the server answered.
		h.event(pod, c, "FailedPostStartHook", "PostStartHook failed")
	}
	return err
}

// PreStop runs the container's hook before its end, if it has one, for at most the grace period,
// and returns what is left of that for the container itself. A failed hook has no other effect.
func (h *Hooks) PreStop(ctx context.Context, pod *v1.Pod, c *v1.Container, containerID, podIP string, grace time.Duration) time.Duration {
	if c.Lifecycle == nil || c.Lifecycle.PreStop == nil || grace <= 0 {
		return grace
	}
	began := time.Now()
	within, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	if err := h.run(within, pod, c, c.Lifecycle.PreStop, containerID, podIP); err != nil {
		klog.FromContext(ctx).Error(err, "PreStop hook failed", "pod", klog.KObj(pod), "container", c.Name)
		h.event(pod, c, "FailedPreStopHook", "PreStopHook failed")
	}
	return max(grace-time.Since(began), 0)
}

func (h *Hooks) event(pod *v1.Pod, c *v1.Container, reason, message string) {
	if h.options.Event != nil {
		h.options.Event(pod, c.Name, v1.EventTypeWarning, reason, message)
	}
}

// hookError is why a hook failed, as a status words it.
type hookError struct {
	text  string
	cause error
}

func (e *hookError) Error() string { return e.text }
func (e *hookError) Unwrap() error { return e.cause }

func (h *Hooks) run(ctx context.Context, pod *v1.Pod, c *v1.Container, hook *v1.LifecycleHandler, containerID, podIP string) error {
	var what, rest string
	var err error
	switch {
	case hook.Exec != nil:
		var stdout, stderr []byte
		stdout, stderr, err = h.options.Exec.ExecSync(ctx, bare(containerID), hook.Exec.Command, 0)
		what = fmt.Sprintf("Exec lifecycle hook (%v)", hook.Exec.Command)
		rest = fmt.Sprintf(", message: %q", append(stdout[:len(stdout):len(stdout)], stderr...))
	case hook.HTTPGet != nil:
		err = h.get(ctx, pod, c, hook.HTTPGet, podIP)
		what = fmt.Sprintf("HTTP lifecycle hook (%s)", hook.HTTPGet.Path)
	case hook.Sleep != nil:
		err = sleep(ctx, lifecycle.Seconds(hook.Sleep.Seconds))
		what = fmt.Sprintf("Sleep lifecycle hook (%d)", hook.Sleep.Seconds)
	default:
		return &hookError{text: fmt.Sprintf("Cannot run handler: invalid handler: %v", hook)}
	}
	if err == nil {
		return nil
	}
	name := fmt.Sprintf("%s_%s(%s)", pod.Name, pod.Namespace, pod.UID)
	return &hookError{fmt.Sprintf("%s for Container %q in Pod %q failed - error: %v%s", what, c.Name, name, err, rest), err}
}

func sleep(ctx context.Context, length time.Duration) error {
	timer := time.NewTimer(length)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return errors.New("container terminated before sleep hook finished")
	}
}

// get makes a hook's request. Any answer is a success, whatever its status. If a server answers in
// plain HTTP where HTTPS was requested, the request is repeated over HTTP, without anything that
// may be secret: hooks worked like that before their scheme could be chosen.
func (h *Hooks) get(ctx context.Context, pod *v1.Pod, c *v1.Container, action *v1.HTTPGetAction, podIP string) error {
	if action.Host == "" && podIP == "" {
		return errors.New("failed to find networking container: the pod has no address")
	}
	request, err := httpRequest(ctx, action, c, podIP, "lifecycle")
	if err != nil {
		return err
	}
	err = do(request)
	if err == nil || !strings.Contains(err.Error(), "server gave HTTP response to HTTPS client") {
		return err
	}
	again := request.Clone(ctx)
	again.URL.Scheme = "http"
	again.Header.Del("Authorization")
	if do(again) != nil {
		return err
	}
	h.event(pod, c, "LifecycleHTTPFallback", fmt.Sprintf("request to HTTPS lifecycle hook %s got HTTP response, retry with HTTP succeeded", request.URL.Host))
	return nil
}

func do(request *http.Request) error {
	client := http.Client{Transport: transport, CheckRedirect: sameHost}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, longest)) // read to its end, so that the server can finish its answer
	return nil
}
