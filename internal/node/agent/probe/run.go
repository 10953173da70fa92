package probe

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	remote "k8s.io/cri-client/pkg"
	"k8s.io/klog/v2"
	"k8s.io/utils/exec"

	"github.com/berth-k8s/berth/internal/node/agent/env"
)

// answer is the result of one probe. An error means that the probe could not be made, and says
// nothing about the container.
type answer struct {
	result  Result
	output  string
	warning bool // of a success: the output is worth an event
	err     error
}

func failed(output string) answer          { return answer{result: Failure, output: output} }
func impossible(err error) answer          { return answer{err: err} }
func succeeded(output string) answer       { return answer{result: Success, output: output} }
func failedf(f string, args ...any) answer { return failed(fmt.Sprintf(f, args...)) }

// tries is how often a probe that cannot be made is attempted.
const tries = 3

// probe makes one probe, and records what it found.
func (p *Prober) probe(ctx context.Context, kind Kind, pod *v1.Pod, status *v1.PodStatus, c *v1.Container) Result {
	var got answer
	began := time.Now()
	for range tries {
		if got = p.ask(ctx, specOf(c, kind), status, c); got.err == nil || ctx.Err() != nil {
			break
		}
	}
	if ctx.Err() != nil {
		return Unknown // the pod's probes have been stopped
	}
	switch {
	case got.err != nil:
		p.event(pod, c, v1.EventTypeWarning, "Unhealthy", fmt.Sprintf("%s probe errored and resulted in unknown state: %s", kind, got.err))
		return Unknown
	case got.result == Failure:
		p.event(pod, c, v1.EventTypeWarning, "Unhealthy", fmt.Sprintf("%s probe failed: %s", kind, got.output))
	case got.warning:
		p.event(pod, c, v1.EventTypeWarning, "ProbeWarning", fmt.Sprintf("%s probe warning: %s", kind, got.output))
	}
	p.metrics.count(kind, pod, c, got.result, time.Since(began))
	if ctx.Err() != nil { // stopped in between, and its metrics removed
		p.metrics.forget(pod)
	}
	klog.FromContext(ctx).V(4).Info("Probed", "probe", kind, "pod", klog.KObj(pod), "container", c.Name, "result", got.result)
	return got.result
}

func (p *Prober) event(pod *v1.Pod, c *v1.Container, eventType, reason, message string) {
	if p.options.Event != nil {
		p.options.Event(pod, c.Name, eventType, reason, message)
	}
}

// ask makes a probe once.
func (p *Prober) ask(ctx context.Context, spec *v1.Probe, status *v1.PodStatus, c *v1.Container) answer {
	timeout := time.Duration(max(spec.TimeoutSeconds, 1)) * time.Second
	switch {
	case spec.Exec != nil:
		seen := statusOf(status, c.Name)
		if seen == nil {
			return impossible(fmt.Errorf("container %s is not there", c.Name))
		}
		return execute(ctx, p.options.Exec, bare(seen.ContainerID), env.ExpandStatic(spec.Exec.Command, c.Env), timeout)
	case spec.HTTPGet != nil:
		request, err := httpRequest(ctx, spec.HTTPGet, c, status.PodIP, "probe")
		if err != nil {
			return impossible(err)
		}
		return get(request, timeout)
	case spec.TCPSocket != nil:
		number, err := port(spec.TCPSocket.Port, c)
		if err != nil {
			return impossible(err)
		}
		return connect(ctx, orElse(spec.TCPSocket.Host, status.PodIP), number, timeout)
	case spec.GRPC != nil:
		service := ""
		if spec.GRPC.Service != nil {
			service = *spec.GRPC.Service
		}
		return check(ctx, status.PodIP, int(spec.GRPC.Port), service, timeout)
	}
	return impossible(fmt.Errorf("missing probe handler for container %s", c.Name))
}

func orElse(host, podIP string) string {
	if host == "" {
		return podIP
	}
	return host
}

// longest is how much of an answer is read.
const longest = 10 << 10

// execute runs a command in the container. Exit code zero is success.
func execute(ctx context.Context, executor Executor, containerID string, command []string, timeout time.Duration) answer {
	stdout, stderr, err := executor.ExecSync(ctx, containerID, command, timeout)
	output := string(append(stdout[:len(stdout):len(stdout)], stderr...))
	output = output[:min(len(output), longest)]
	var exit exec.ExitError
	switch {
	case err == nil:
		return succeeded(output)
	case errors.As(err, &exit):
		return failed(output)
	case errors.Is(err, remote.ErrCommandTimedOut), errors.Is(err, context.DeadlineExceeded):
		return failed(err.Error())
	}
	return impossible(err)
}

// port resolves a number, or the name of one of the container's ports.
func port(wanted intstr.IntOrString, c *v1.Container) (int, error) {
	number := wanted.IntValue() // zero if it is a name
	if wanted.Type == intstr.String {
		var err error
		if number, err = namedPort(c, wanted.StrVal); err != nil {
			return 0, err
		}
	}
	if number <= 0 || number > 65535 {
		return 0, fmt.Errorf("invalid port number: %v", number)
	}
	return number, nil
}

func namedPort(c *v1.Container, name string) (int, error) {
	for _, p := range c.Ports {
		if p.Name == name {
			return int(p.ContainerPort), nil
		}
	}
	return strconv.Atoi(name) // a number that came as a string
}
