// node pyodide.mjs PYODIDE CODE FOLDER…: runs Python code in Pyodide, with folders of this machine
// at /mnt/0, /mnt/1, … The exit code is what the code leaves in `exit_code`.
import { pathToFileURL } from "node:url";

const [pyodide, code, ...folders] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(`${pyodide}/pyodide.mjs`));
const env = { HOME: "/tmp", PYTHONDONTWRITEBYTECODE: "1", PYTEST_DISABLE_PLUGIN_AUTOLOAD: "1" };
const python = await loadPyodide({ env });
folders.forEach((root, number) => {
  python.FS.mkdirTree(`/mnt/${number}`);
  python.FS.mount(python.FS.filesystems.NODEFS, { root }, `/mnt/${number}`);
});
try {
  python.runPython(code);
  process.exitCode = python.globals.get("exit_code");
} catch (error) {
  // Uncaught, it would come with a line of Pyodide's own source: megabytes.
  console.error(error.message);
  process.exitCode = 70;
}
