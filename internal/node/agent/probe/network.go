package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	health "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/component-base/version"
)

// dialer lets its closed connections linger for one second instead of the usual minute: probes are
// many, and each would occupy a port. Without any lingering, a reset would cut off what is in
// transit.
var dialer = net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		_ = syscall.SetsockoptLinger(int(fd), syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1, Linger: 1})
	})
}}

// transport is for probes and hooks: certificates are not verified, since they are for names and
// not for a pod's address; the node's proxy is not used; connections are not kept.
var transport = utilnet.SetTransportDefaults(&http.Transport{
	TLSClientConfig:    &tls.Config{InsecureSkipVerify: true},
	DisableKeepAlives:  true,
	DisableCompression: true,
	Proxy:              http.ProxyURL(nil),
	DialContext:        dialer.DialContext,
})

// httpRequest is the request of a probe or a hook.
func httpRequest(ctx context.Context, action *v1.HTTPGetAction, c *v1.Container, podIP, purpose string) (*http.Request, error) {
	number, err := port(action.Port, c)
	if err != nil {
		return nil, err
	}
	target, err := url.Parse(action.Path)
	if err != nil {
		target = &url.URL{Path: action.Path} // it is too late to reject it
	}
	target.Scheme = strings.ToLower(orElse(string(action.Scheme), "http"))
	target.Host = net.JoinHostPort(orElse(action.Host, podIP), strconv.Itoa(number))
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return nil, err
	}
	for _, header := range action.HTTPHeaders {
		request.Header.Add(header.Name, header.Value)
	}
	if _, own := request.Header["User-Agent"]; !own {
		running := version.Get()
		request.Header.Set("User-Agent", fmt.Sprintf("kube-%s/%s.%s", purpose, running.Major, running.Minor))
	}
	if values, own := request.Header["Accept"]; !own {
		request.Header.Set("Accept", "*/*")
	} else if values[0] == "" {
		request.Header.Del("Accept")
	}
	request.Host = request.Header.Get("Host")
	return request, nil
}

// sameHost follows redirects, but not to other hosts: their answers say nothing about the
// container.
func sameHost(next *http.Request, before []*http.Request) error {
	const most = 10
	if next.URL.Hostname() != before[0].URL.Hostname() {
		return http.ErrUseLastResponse
	}
	if len(before) >= most {
		return fmt.Errorf("stopped after %d redirects", most)
	}
	return nil
}

// get succeeds with a status from 200 to 399.
func get(request *http.Request, timeout time.Duration) answer {
	client := http.Client{Transport: transport, Timeout: timeout, CheckRedirect: sameHost}
	response, err := client.Do(request)
	if err != nil {
		return failed(err.Error())
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, longest))
	switch {
	case err != nil:
		return failed(err.Error())
	case response.StatusCode < http.StatusOK || response.StatusCode >= http.StatusBadRequest:
		// Without the body: not everyone who may read events may see that.
		return failedf("HTTP probe failed with statuscode: %d", response.StatusCode)
	case response.StatusCode >= http.StatusMultipleChoices:
		return answer{result: Success, warning: true, output: fmt.Sprintf("Probe terminated redirects, Response body: %v", string(body))}
	}
	return succeeded(string(body))
}

// connect succeeds when a connection is made.
func connect(ctx context.Context, host string, port int, timeout time.Duration) answer {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	connection, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return failed(err.Error())
	}
	_ = connection.Close() // it was made: that is the answer
	return succeeded("")
}

// check queries the service's health by gRPC's health protocol.
func check(ctx context.Context, host string, port int, service string, timeout time.Duration) answer {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	running := version.Get()
	address := net.JoinHostPort(host, strconv.Itoa(port))
	connection, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithUserAgent(fmt.Sprintf("kube-probe/%s.%s", running.Major, running.Minor)),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", address)
		}))
	if err != nil {
		return failedf("error: failed to connect service at %q: %+v", address, err)
	}
	defer connection.Close()
	connection.Connect()
	for state := connection.GetState(); state != connectivity.Ready; state = connection.GetState() {
		if !connection.WaitForStateChange(ctx, state) {
			return failedf("timeout: failed to connect service %q within %v: %+v", address, timeout, ctx.Err())
		}
		connection.Connect() // also again when it has failed
	}
	response, err := health.NewHealthClient(connection).Check(ctx, &health.HealthCheckRequest{Service: service})
	switch code := status.Code(err); {
	case err == nil:
	case code == codes.Unimplemented:
		return failedf("error: this server does not implement the grpc health protocol (grpc.health.v1.Health): %s", status.Convert(err).Message())
	case code == codes.DeadlineExceeded, errors.Is(err, context.DeadlineExceeded):
		return failedf("timeout: health rpc did not complete within %v", timeout)
	default:
		return failedf("error: health rpc probe failed: %+v", err)
	}
	if response.GetStatus() != health.HealthCheckResponse_SERVING {
		return failedf("service unhealthy (responded with %q)", response.GetStatus().String())
	}
	return succeeded("service healthy")
}
