// A page that was opened from a disk may start no worker. There, an iframe takes the place of the search's worker.
if (location.protocol === "file:") {
  class IFrameWorker extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = "<!doctype html><title>search</title>";
      this.inside = new Promise((resolve) => {
        frame.onload = async () => {
          const inside = frame.contentWindow;
          const load = (source) =>
            new Promise((done, failed) => {
              const script = inside.document.createElement("script");
              Object.assign(script, { src: source, onload: done, onerror: failed });
              inside.document.head.append(script);
            });
          inside.importScripts = (...sources) =>
            sources.reduce((before, source) => before.then(() => load(source)), Promise.resolve());
          inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          await load(url);
          resolve(inside);
        };
      });
      document.body.append(frame);
    }

    async postMessage(data) {
      (await this.inside).dispatchEvent(new MessageEvent("message", { data }));
    }
  }
  window.IFrameWorker = window.Worker = IFrameWorker; // the worker's code looks for this name
}
