// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/metrics"
	"k8s.io/client-go/util/flowcontrol"
)

// poster creates the two objects needed by every pod: its binding, and the event about it. These
// two requests are most of a scheduler's cost, and client-go's generic handling of requests would
// double it: it assembles each URL from parts and parses it again for metrics, decodes unused
// responses, and copies headers in case of a redirect. Limits, Retry-After, redirects and metrics
// match client-go.
type poster struct {
	client     *http.Client
	transport  http.RoundTripper       // the client's transport
	server     *url.URL                // the URL for metrics, with the server but not the request's path
	namespaces *url.URL                // unchanged
	limit      flowcontrol.RateLimiter // nil: none
	serializer runtime.Serializer
	header     http.Header // of all requests; unchanged
}

const (
	// mostTries bounds the tries of a request on an API server that keeps sending Retry-After.
	mostTries = 10
	// longestAnswer bounds the bytes read of an error response.
	longestAnswer = 64 << 10
)

// newPoster returns a poster using the connections of through and the rate limit of limited. agent
// is the user agent; if empty, that of through. newPoster needs real clients: a fake one sends no
// requests.
func newPoster(through, limited kubernetes.Interface, contentType, agent string) (*poster, error) {
	contentType = cmp.Or(contentType, runtime.ContentTypeProtobuf)
	info, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), contentType)
	if !ok {
		return nil, fmt.Errorf("content type %s: there are %s and %s", contentType, runtime.ContentTypeProtobuf, runtime.ContentTypeJSON)
	}

	client, ok := through.CoreV1().RESTClient().(*rest.RESTClient)
	if !ok {
		return nil, fmt.Errorf("a client that sends requests is needed, not %T", through)
	}

	server := client.Post().AbsPath("/").URL()
	header := http.Header{"Content-Type": {contentType}, "Accept": {contentType + ", " + runtime.ContentTypeJSON}}
	if agent != "" {
		header.Set("User-Agent", agent)
	}

	sends := cmp.Or(client.Client, http.DefaultClient)
	transport := sends.Transport
	if transport == nil {
		transport = http.DefaultTransport
	}

	return &poster{
		client: sends, transport: transport, server: server, namespaces: server.JoinPath("api/v1/namespaces"),
		limit: limited.CoreV1().RESTClient().GetRateLimiter(), serializer: info.Serializer, header: header,
	}, nil
}

// postBinding binds a pod. Its errors match client-go's, so that isAnswered and the reasons in
// metrics work unchanged.
func (p *poster) postBinding(ctx context.Context, b *v1.Binding) error {
	b.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Binding"}
	return p.postObject(ctx, b.Namespace, "pods/"+b.Name+"/binding", b)
}

// postEvent writes an event.
func (p *poster) postEvent(ctx context.Context, e *v1.Event) error {
	e.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Event"}
	return p.postObject(ctx, e.Namespace, "events", e)
}

// postObject encodes the object once, and repeats the request for as long as the API server sends
// Retry-After.
func (p *poster) postObject(ctx context.Context, namespace, resource string, object runtime.Object) error {
	var body bytes.Buffer
	if err := p.serializer.Encode(object, &body); err != nil {
		return err
	}

	to := *p.namespaces
	to.Path += "/" + namespace + "/" + resource
	if to.RawPath != "" { // the preceding parts of the path need unusual escapes
		to.RawPath += "/" + namespace + "/" + resource
	}

	for try := 1; ; try++ {
		// Each try counts, as in client-go: it is a request like any other to the API server.
		if p.limit != nil {
			if err := p.limit.Wait(ctx); err != nil {
				return err
			}
		}
		comeBack, err := p.sendRequest(ctx, &to, body.Bytes())
		if comeBack == 0 || try == mostTries {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(comeBack):
		}
	}
}

// sendRequest sends one request. If the response requests a retry, sendRequest returns the time to
// wait before it.
func (p *poster) sendRequest(ctx context.Context, to *url.URL, body []byte) (comeBack time.Duration, err error) {
	if p.client.Timeout > 0 {
		within, cancel := context.WithTimeout(ctx, p.client.Timeout)
		defer cancel()
		ctx = within
	}

	began, code := time.Now(), "<error>"
	response, err := p.transport.RoundTrip(p.newRequest(ctx, to, body))
	switch {
	case err != nil:
		err = &url.Error{Op: "Post", URL: to.Redacted(), Err: err} // like http.Client
	case response.StatusCode/100 == 3: // a proxy redirects the request
		response.Body.Close()
		response, err = p.client.Do(p.newRequest(ctx, to, body))
	}

	if err == nil {
		code = strconv.Itoa(response.StatusCode)
		defer response.Body.Close()
	}
	metrics.RequestLatency.Observe(ctx, http.MethodPost, *p.server, time.Since(began))
	metrics.RequestSize.Observe(ctx, http.MethodPost, p.server.Host, float64(len(body)))
	metrics.RequestResult.Increment(ctx, code, http.MethodPost, p.server.Host)
	switch {
	case err != nil:
		return 0, err
	case response.StatusCode < http.StatusMultipleChoices:
		_, _ = io.Copy(io.Discard, response.Body) // read to the end, so that the connection can be reused
		return 0, nil
	}
	return comeBackAfter(response), errorOf(response)
}

// newRequest is http.NewRequestWithContext for a parsed URL.
func (p *poster) newRequest(ctx context.Context, to *url.URL, body []byte) *http.Request {
	read := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	first, _ := read()
	request := http.Request{
		Method: http.MethodPost, URL: to, Host: to.Host, Header: p.header, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Body: first, GetBody: read, ContentLength: int64(len(body)),
	}
	return request.WithContext(ctx)
}

// comeBackAfter returns the time to wait before a retry; 0 means never. Like client-go, it honors
// the server's Retry-After only for 429 and for failures of the server. A millisecond distinguishes
// "immediately" (Retry-After: 0) from never.
func comeBackAfter(r *http.Response) time.Duration {
	if r.StatusCode != http.StatusTooManyRequests && r.StatusCode < http.StatusInternalServerError {
		return 0
	}
	seconds, err := strconv.Atoi(r.Header.Get("Retry-After"))
	if err != nil || seconds < 0 {
		return 0
	}
	return time.Duration(seconds)*time.Second + time.Millisecond
}

// errorOf returns the error in a response of the API server, or of a proxy in front of it.
func errorOf(r *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(r.Body, longestAnswer))
	if said, _, err := scheme.Codecs.UniversalDeserializer().Decode(text, nil, nil); err == nil {
		if status, ok := said.(*metav1.Status); ok && status.Status != metav1.StatusSuccess {
			return &apierrors.StatusError{ErrStatus: *status}
		}
	}
	return apierrors.NewGenericServerResponse(r.StatusCode, http.MethodPost, schema.GroupResource{}, "", string(text), 0, true)
}
