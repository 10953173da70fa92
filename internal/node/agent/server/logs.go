package server

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/node/agent/server/logfile"
)

func (s *Server) logs(w http.ResponseWriter, r *http.Request, route route) {
	options, previous, err := logOptions(r.URL.Query(), time.Now())
	if err != nil {
		fail(w, err)
		return
	}
	path, id, err := s.logPath(r.Context(), route, previous)
	if err != nil {
		fail(w, err)
		return
	}
	options.Running = func(ctx context.Context) (bool, error) { return s.writes(ctx, id) }
	out := &logWriter{controller: http.NewResponseController(w), w: w, stall: s.limits.stall}
	out.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	err = logfile.Read(r.Context(), s.options.LogDir, path, options, out)
	switch {
	case err == nil || r.Context().Err() != nil:
	case out.begun:
		// It is too late for a status code. Aborting the answer shows that it is incomplete.
		klog.FromContext(r.Context()).Error(err, "A log was not read to its end", "path", path)
		panic(http.ErrAbortHandler)
	case errors.Is(err, fs.ErrNotExist):
		http.Error(w, "the log of the container is gone", http.StatusNotFound)
	case errors.Is(err, logfile.ErrRefused):
		klog.FromContext(r.Context()).Error(err, "A log was refused")
		http.Error(w, logfile.ErrRefused.Error(), http.StatusForbidden)
	default:
		fail(w, err)
	}
}

// logPath is where the runtime writes the log.
func (s *Server) logPath(ctx context.Context, r route, previous bool) (path, id string, err error) {
	pod, err := s.pod(r)
	if err != nil {
		return "", "", err
	}
	if _, err := container(pod, r.container); err != nil {
		return "", "", err
	}
	if id, err = logged(pod, r.container, previous); err != nil {
		return "", "", err
	}
	response, err := s.options.Runtime.ContainerStatus(ctx, id, false)
	if err != nil {
		return "", "", err
	}
	if path = response.GetStatus().GetLogPath(); path == "" {
		return "", "", refuse(http.StatusNotFound, "the runtime keeps no log of container %q in pod %q", r.container, r.pod)
	}
	return path, id, nil
}

// writes reports whether a container may still write. A runtime that does not answer does not mean
// that the container has ended.
func (s *Server) writes(ctx context.Context, id string) (bool, error) {
	response, err := s.options.Runtime.ContainerStatus(ctx, id, false)
	switch {
	case err == nil:
		return response.GetStatus().GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING, nil
	case status.Code(err) == codes.NotFound:
		return false, nil
	case status.Code(err) == codes.Unavailable, ctx.Err() != nil:
		return true, nil
	}
	return false, err
}

// logOptions parses the query of kubectl logs by the rules of the API's PodLogOptions.
func logOptions(query url.Values, now time.Time) (o logfile.Options, previous bool, err error) {
	bad := refuse(http.StatusUnprocessableEntity, `{"message": "Invalid request."}`)
	o.Follow, previous, o.Timestamps = flag(query, "follow"), flag(query, "previous"), flag(query, "timestamps")
	if o.Tail, err = number(query, "tailLines"); err != nil {
		return o, previous, err
	}
	if o.Limit, err = number(query, "limitBytes"); err != nil {
		return o, previous, err
	}
	since, err := number(query, "sinceSeconds")
	if err != nil {
		return o, previous, err
	}
	if (o.Tail != nil && *o.Tail < 0) || (o.Limit != nil && *o.Limit < 1) || (since != nil && (*since < 1 || query.Has("sinceTime"))) {
		return o, previous, bad
	}
	if since != nil {
		o.Since = now.Add(-time.Duration(min(*since, maxSince)) * time.Second)
	}
	if text := query.Get("sinceTime"); text != "" {
		if o.Since, err = time.Parse(time.RFC3339, text); err != nil {
			return o, previous, refuse(http.StatusBadRequest, `{"message": "Unable to decode query."}`)
		}
	}
	switch stream := query.Get("stream"); stream {
	case "", v1.LogStreamAll:
	case v1.LogStreamStdout, v1.LogStreamStderr:
		o.Only = logfile.Stream(strings.ToLower(stream))
		if o.Tail != nil {
			return o, previous, bad
		}
	default:
		return o, previous, bad
	}
	return o, previous, nil
}

// maxSince is a hundred years in seconds: more does not fit a duration.
const maxSince = 100 * 365 * 24 * 3600

// flag parses a boolean as the API does: a parameter without a value is true.
func flag(query url.Values, name string) bool {
	return query.Has(name) && query.Get(name) != "0" && !strings.EqualFold(query.Get(name), "false")
}

func number(query url.Values, name string) (*int64, error) {
	if !query.Has(name) {
		return nil, nil
	}
	n, err := strconv.ParseInt(query.Get(name), 10, 64)
	if err != nil {
		return nil, refuse(http.StatusBadRequest, `{"message": "Unable to decode query."}`)
	}
	return &n, nil
}

// logWriter allows a reader unlimited time as long as it keeps reading now and then.
type logWriter struct {
	controller *http.ResponseController
	w          http.ResponseWriter
	stall      time.Duration
	begun      bool
}

func (l *logWriter) Write(p []byte) (int, error) {
	l.begun = true
	_ = l.controller.SetWriteDeadline(time.Now().Add(l.stall))
	return l.w.Write(p)
}

// Flush also sends the headers, so that a client that follows a silent container knows that it has
// begun.
func (l *logWriter) Flush() error {
	l.begun = true
	_ = l.controller.SetWriteDeadline(time.Now().Add(l.stall))
	return l.controller.Flush()
}
